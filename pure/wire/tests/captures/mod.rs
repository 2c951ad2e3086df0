//! Finds the captures in the tree and takes the IP packets out of them.

use adverb_wire::pcap::Reader;
use std::fs;
use std::path::Path;

/// One file.
pub(crate) struct Capture {
    /// Its name, without the ending.
    pub(crate) name: String,
    /// IP packets, in the order of the file.
    pub(crate) packets: Vec<Vec<u8>>,
}

/// All captures, by name.
pub(crate) fn captures() -> Vec<Capture> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden");
    let mut captures: Vec<Capture> = fs::read_dir(folder)
        .expect("the folder is in the tree")
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "pcap"))
        .map(|path| read(&path))
        .collect();
    captures.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(captures.len(), 29);
    captures
}

fn read(path: &Path) -> Capture {
    let file = fs::read(path).expect("the capture can be read");
    let frames = Reader::new(&file).expect("a classic capture");
    let packets = frames.map(|frame| frame.expect("a whole frame").ip().expect("IP").to_vec());
    let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
    Capture { name, packets: packets.collect() }
}
