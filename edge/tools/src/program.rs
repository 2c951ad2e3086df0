//! Whether a library can be put in front of a program, as far as its file tells, and where ours are.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::read::elf::{ElfFile64, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, ReadCache, elf};

/// Why the sockets of a program will be the kernel's; `None` if nothing speaks against acceleration, or the
/// file cannot be read.
pub(crate) fn obstacle(program: &OsStr) -> Option<String> {
    let path = find(program)?;
    obstacle_of(&path, SCRIPTS_MAX, true)
}

/// Why a library cannot be put in front of a program at all; `None` if nothing speaks against it, or the file
/// cannot be read.
pub(crate) fn obstacle_to_loading(program: &OsStr) -> Option<String> {
    let path = find(program)?;
    obstacle_of(&path, SCRIPTS_MAX, false)
}

/// The program asks for the library of GCC's AddressSanitizer, which ends it if another one was loaded before.
pub(crate) fn has_sanitizer(program: &OsStr) -> bool {
    let Some(file) = find(program).and_then(|path| File::open(path).ok()) else {
        return false;
    };
    let cache = ReadCache::new(file);
    let program = ElfFile64::<Endianness, _>::parse(&cache);
    program.is_ok_and(|program| {
        let mut symbols = program.dynamic_symbols();
        symbols.any(|symbol| symbol.is_undefined() && symbol.name() == Ok(SANITIZER_START))
    })
}

/// A library of ours, beside this command or where packages put it.
pub(crate) fn library(name: &str) -> Option<PathBuf> {
    let places = library_places(&std::env::current_exe().unwrap_or_default());
    let found = places.iter().map(|place| place.join(name)).find(|file| file.exists());
    found.and_then(|file| file.canonicalize().ok())
}

/// Beside a command, as a build leaves it or a package; and where packages put libraries, for a command that was installed
/// by itself (`cargo install`).
fn library_places(exe: &Path) -> [PathBuf; 5] {
    let beside = exe.parent().map(PathBuf::from).unwrap_or_default();
    let packages = ["/usr/local/lib", "/usr/lib"].map(PathBuf::from);
    let [local, system] = packages;
    [beside.clone(), beside.join("deps"), beside.join("../lib"), local, system]
}

/// As `execvp(3)` finds it.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH")?;
    let can_run = |file: &PathBuf| {
        std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&path).map(|place| place.join(program)).find(can_run)
}

/// `calls`: it matters that the program makes its system calls by the C library.
fn obstacle_of(path: &Path, scripts: u32, calls: bool) -> Option<String> {
    let name = path.display();
    let file = File::open(path).ok()?;
    let facts = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mode = facts.mode();
    if mode & SET_USER_ID != 0 && facts.uid() != adverb_sys::process::user() {
        return Some(format!("{name} is set-user-ID: the system loads no library into it"));
    }
    if mode & SET_GROUP_ID != 0 {
        return Some(format!("{name} is set-group-ID: the system loads no library into it"));
    }
    if adverb_sys::process::user() != 0 && adverb_sys::process::has_capabilities(&file) {
        return Some(format!("{name} has capabilities: the system loads no library into it"));
    }
    let mut reader = BufReader::new(file);
    if let Some(interpreter) = interpreter(&mut reader) {
        return obstacle_of(&interpreter, scripts.checked_sub(1)?, calls);
    }
    reader.rewind().ok()?;
    let cache = ReadCache::new(reader.into_inner());
    let program = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let endian = program.endian();
    let mut headers = program.elf_program_headers().iter();
    if !headers.any(|header| header.p_type(endian) == elf::PT_INTERP) {
        return Some(format!("{name} is linked statically: no library can be loaded into it"));
    }
    if calls && GO_SECTIONS.iter().any(|section| program.section_by_name(section).is_some()) {
        return Some(format!(
            "{name} is a Go program: it makes its system calls without the C library"
        ));
    }
    None
}

/// That of a script.
fn interpreter(file: &mut impl BufRead) -> Option<PathBuf> {
    let mut line = Vec::new();
    std::io::Read::take(file, INTERPRETER_MAX).read_until(b'\n', &mut line).ok()?;
    let words = line.strip_prefix(b"#!")?.trim_ascii();
    let first = words.split(u8::is_ascii_whitespace).next().filter(|word| !word.is_empty())?;
    Some(PathBuf::from(std::ffi::OsString::from_vec(first.to_vec())))
}

/// Bits of a file's mode.
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
/// The linker of Go writes them.
const GO_SECTIONS: [&str; 2] = [".go.buildinfo", ".note.go.buildid"];
/// The function that a program with AddressSanitizer calls first.
const SANITIZER_START: &str = "__asan_init";
/// Scripts that are run by scripts, as many as the kernel follows (`execve(2)`).
const SCRIPTS_MAX: u32 = 4;
/// Bytes of a script's first line that the kernel reads (`execve(2)`).
const INTERPRETER_MAX: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a command that was installed by itself finds the libraries of the package, and any other its own.
    #[test]
    fn libraries_are_looked_for_beside_the_command_before_they_are_where_packages_put_them() {
        let places = library_places(Path::new("/opt/cargo/bin/adverb"));
        let places: Vec<_> = places.iter().map(|place| place.to_str().unwrap()).collect();
        let [first, .., last] = &places[..] else { panic!("{places:?}") };
        assert_eq!((*first, *last), ("/opt/cargo/bin", "/usr/lib"));
    }
    use std::process::Command;

    fn compile(flags: &[&str], source: &str) -> Option<(PathBuf, PathBuf)> {
        let place = std::env::temp_dir().join(format!(
            "adverb-program-{}-{}",
            std::process::id(),
            flags.len()
        ));
        std::fs::create_dir_all(&place).unwrap();
        let (code, program) = (place.join("p.c"), place.join("p"));
        std::fs::write(&code, source).unwrap();
        let done = Command::new("cc").args(flags).arg(&code).arg("-o").arg(&program).status();
        done.is_ok_and(|status| status.success()).then_some((place, program))
    }

    #[test]
    fn what_the_file_tells_is_told() {
        let main = "int main(void) { return 0; }";
        let go =
            "__attribute__((section(\".go.buildinfo\"))) int x = 1; int main(void) { return 0; }";
        for (flags, source, word) in [
            (&[][..], main, None),
            (&["-static"], main, Some("statically")),
            (&["-g", "-O1"], go, Some("Go program")),
        ] {
            let (place, program) = compile(flags, source).expect("a C compiler");
            let found = obstacle(program.as_os_str());
            assert_eq!(found.is_some(), word.is_some(), "{found:?}");
            if let (Some(found), Some(word)) = (&found, word) {
                assert!(found.contains(word), "{found}");
            }
            let script = place.join("script");
            std::fs::write(&script, format!("#! {}\n", program.display())).unwrap();
            assert_eq!(
                obstacle(script.as_os_str()),
                found,
                "a script has what its interpreter has"
            );
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o2755)).unwrap();
            assert!(obstacle(program.as_os_str()).is_some_and(|why| why.contains("set-group-ID")));
            std::fs::remove_dir_all(&place).unwrap();
        }
        assert_eq!(obstacle(OsStr::new("/nowhere")), None);
        assert_eq!(obstacle(OsStr::new("/dev/zero")), None);
        assert_eq!(obstacle(OsStr::new("sh")), None);
    }

    #[test]
    fn scripts_that_run_each_other_come_to_an_end() {
        let script = std::env::temp_dir().join(format!("adverb-script-{}", std::process::id()));
        std::fs::write(&script, format!("#!{}\n", script.display())).unwrap();
        assert_eq!(obstacle(script.as_os_str()), None);
        std::fs::remove_file(&script).unwrap();
    }
}
