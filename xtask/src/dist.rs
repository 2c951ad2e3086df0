//! Packages: a Debian package and an archive of what users run, with manual pages and completions; a Python wheel.
//!
//! The trees are put together here and packed by `dpkg-deb` and `tar`. `dist --check` installs the Debian package in a
//! root of its own, which `mmdebstrap` makes, does there what the README says, removes it, and sees that nothing is left.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{run, target};
use crate::{Failure, files, python, readme};

/// What users run.
pub(crate) const PACKAGES: [&str; 3] = ["adverb-tools", "adverb-libibverbs", "adverb-sockets"];

/// Builds with this profile, and packs to `target/dist`.
pub(crate) fn dist(root: &Path, profile: &str) -> Result<(), Failure> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(root).args(["build", "--locked", "--profile", profile]);
    match profile {
        // With the features that all tests are built with (an example has them, too), so that nothing is built twice. The
        // lints are checked with their own, too.
        "dev" => cargo.args(["--workspace", "--lib", "--bins", "--example", "lab_peer"]),
        _ => cargo.args(PACKAGES.iter().flat_map(|name| ["-p", name])),
    };
    if !cargo.status().map_err(failed("cargo"))?.success() {
        return Err("cargo has not built the packages".to_owned());
    }
    let target = target(root);
    let built = target.join(if profile == "dev" { "debug" } else { profile });
    let dist = target.join("dist");
    let tree = dist.join("tree");
    let _ = fs::remove_dir_all(&dist);
    assemble(root, &built, &tree)?;
    let version = version(root)?;
    let architecture = output("dpkg", &["--print-architecture"])?;
    control(&tree, &version, &architecture)?;
    let deb = dist.join(format!("adverb_{version}_{architecture}.deb"));
    let words = ["--root-owner-group", "--build", text(&tree)?, text(&deb)?];
    output("dpkg-deb", &words)?;
    fs::remove_dir_all(tree.join("DEBIAN")).map_err(failed("removing DEBIAN"))?;
    let archive = dist.join(format!("adverb-{version}-{}-linux.tar.gz", std::env::consts::ARCH));
    let name = format!("--transform=s,^\\.,adverb-{version},");
    let words = [
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        &name,
        "-C",
        text(&tree)?,
        "-czf",
        text(&archive)?,
        ".",
    ];
    output("tar", &words)?;
    if !python::wheel(root, &dist, profile)? {
        println!("skipped: no wheel: {}", python::NONE);
    }
    for file in list(&dist)? {
        println!("{}", file.display());
    }
    Ok(())
}

/// The tree, as it will be below `/`.
fn assemble(root: &Path, built: &Path, tree: &Path) -> Result<(), Failure> {
    let put = |from: &Path, to: &str, mode: &str| {
        output("install", &["-D", "-m", mode, text(from)?, text(&tree.join(to))?]).map(drop)
    };
    put(&built.join("adverb"), "usr/bin/adverb", "755")?;
    for library in ["libadverb_ibverbs.so", "libadverb_sockets.so"] {
        put(&built.join(library), &format!("usr/lib/{library}"), "644")?;
    }
    for stripped in
        ["usr/bin/adverb", "usr/lib/libadverb_ibverbs.so", "usr/lib/libadverb_sockets.so"]
    {
        output("strip", &["--strip-debug", text(&tree.join(stripped))?])?;
    }
    put(
        &root.join("edge/preload/include/mellanox/vma_extra.h"),
        "usr/include/mellanox/vma_extra.h",
        "644",
    )?;
    put(
        &root.join("packaging/adverb-sockets.service"),
        "usr/lib/systemd/system/adverb-sockets.service",
        "644",
    )?;
    let generated = tree.with_file_name("generated");
    output(text(&built.join("adverb"))?, &["generate", text(&generated)?])?;
    for page in list(&generated.join("man"))? {
        output("gzip", &["-9n", text(&page)?])?;
    }
    for page in list(&generated.join("man"))? {
        put(&page, &format!("usr/share/man/man1/{}", file_name(&page)?), "644")?;
    }
    for (made, place) in [
        ("adverb.bash", "usr/share/bash-completion/completions/adverb"),
        ("_adverb", "usr/share/zsh/vendor-completions/_adverb"),
        ("adverb.fish", "usr/share/fish/vendor_completions.d/adverb.fish"),
    ] {
        put(&generated.join("completions").join(made), place, "644")?;
    }
    for page in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        put(&root.join(page), &format!("usr/share/doc/adverb/{page}"), "644")?;
    }
    for directory in ["docs", "docs/book/src"] {
        for page in list(&root.join(directory))? {
            put(&page, &format!("usr/share/doc/adverb/{directory}/{}", file_name(&page)?), "644")?;
        }
    }
    put(&root.join("LICENSE-MIT"), "usr/share/doc/adverb/copyright", "644")
}

fn control(tree: &Path, version: &str, architecture: &str) -> Result<(), Failure> {
    let size: u64 = output("du", &["-sk", text(tree)?])?
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok())
        .ok_or("du says no size")?;
    let text = format!(
        "Package: adverb\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: Adverb <adverb@localhost>\n\
         Section: net\nPriority: optional\nInstalled-Size: {size}\nDepends: libc6, libgcc-s1\n\
         Suggests: ibverbs-utils, rdmacm-utils, perftest\n\
         Description: RDMA verbs on any machine, by a software RoCEv2 device\n \
         The command adverb measures and checks RDMA without hardware, kernel module or\n \
         privilege; libadverb_ibverbs.so lets programs of libibverbs run on its devices,\n \
         and libadverb_sockets.so accelerates sockets of programs on one host.\n"
    );
    let place = tree.join("DEBIAN");
    files::write(&place.join("control"), &text)?;
    let after = place.join("postrm");
    files::write(&after, POSTRM)?;
    fs::set_permissions(&after, Permissions::from_mode(0o755)).map_err(failed("marking postrm"))
}

/// Both libraries keep a directory in shared memory for the next program of a user.
const POSTRM: &str = "#!/bin/sh\nset -e\ncase \"$1\" in remove | purge) rm -rf /dev/shm/adverb-ibverbs-* /dev/shm/adverb-sockets-* ;; esac\n";

/// What `check` installs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Origin {
    /// The packages in `target/dist`.
    Package,
    /// What the README builds, from a clone.
    Source,
}

/// Installs the package in a fresh root, does what the README says, removes it, and looks at what is left; installs the
/// wheel in a fresh environment, and runs what the book shows. Or does all that the README says in a fresh root with a
/// clone and a compiler.
pub(crate) fn check(root: &Path, origin: Origin) -> Result<(), Failure> {
    for tool in ["mmdebstrap", "unshare"] {
        if output("sh", &["-c", &format!("command -v {tool}")]).is_err() {
            let reason = format!("dist --check: there is no {tool}");
            if std::env::var_os("CI").is_some() {
                return Err(reason);
            }
            println!("skipped: {reason}");
            return Ok(());
        }
    }
    let page = files::read(&root.join("README.md"))?;
    let dist = target(root).join("dist");
    let fresh = target(root).join("dist-root");
    let _ = fs::remove_dir_all(&fresh);
    let suite = output("sh", &["-c", ". /etc/os-release && echo $VERSION_CODENAME"])?;
    let (programs, check) = match origin {
        Origin::Package => (PROGRAMS.to_owned(), CHECK),
        Origin::Source => (format!("{PROGRAMS},gcc,libc6-dev"), SOURCE_CHECK),
    };
    output("mmdebstrap", &["--variant=minbase", &programs, &suite, text(&fresh)?])?;
    files::write(&fresh.join("readme"), &readme::script(&page, origin)?)?;
    files::write(&fresh.join("check"), check)?;
    let words = ["--net", "--pid", "--fork", "--mount", "--kill-child", "sh", "-c", ENTER, "sh"];
    let mut alone = Command::new("unshare");
    alone.args(words).arg(&fresh);
    match origin {
        Origin::Package => {
            let debs = list(&dist)?;
            let deb = debs.iter().find(|file| file.extension().is_some_and(|end| end == "deb"));
            let deb = deb.ok_or("there is no package: `cargo xtask dist` makes it")?;
            fs::copy(deb, fresh.join("adverb.deb")).map_err(failed("copying the package"))?;
        }
        Origin::Source => drop(alone.arg(clone(root, &fresh)?)),
    }
    let status = alone.status().map_err(failed("unshare"))?;
    fs::remove_dir_all(&fresh).map_err(failed("removing the root"))?;
    if !status.success() {
        return Err(format!("in the fresh root, as above: {status}"));
    }
    if origin == Origin::Source {
        println!("built, installed and used, from a clone");
        return Ok(());
    }
    println!("installed, used, removed: nothing is left");
    match python::try_wheel(root, &dist)? {
        true => println!("the wheel: installed and used"),
        false => println!("skipped: there is no wheel in {}", dist.display()),
    }
    Ok(())
}

/// Puts a clone and the sources of what it depends on into a root without a network; where the compiler is.
fn clone(root: &Path, fresh: &Path) -> Result<String, Failure> {
    let sources = fresh.join("src");
    output("git", &["clone", "--quiet", "--no-hardlinks", text(root)?, text(&sources)?])?;
    let (manifest, vendor) = (sources.join("Cargo.toml"), fresh.join("vendor"));
    let words = ["vendor", "--locked", "--manifest-path", text(&manifest)?];
    let settings = output("cargo", &[&words[..], &[text(&vendor)?]].concat())?;
    files::make(&fresh.join("compiler"))?;
    let settings = settings.replace(text(&vendor)?, "/vendor");
    files::write(&fresh.join("cargo/config.toml"), &settings)?;
    output("rustc", &["--print", "sysroot"])
}

/// Programs of others that the README names, and what makes its two machines.
const PROGRAMS: &str = "--include=iproute2,perftest,redis-server,redis-tools";

/// In namespaces of its own; `$1` is the root, which has to be a mount for `ip netns`, and `$2` where a compiler is, if the
/// root is to have one.
const ENTER: &str = r#"
set -eu
mount --make-rprivate /
mount --bind "$1" "$1"
cd "$1"
mount -t proc none proc
mount -t sysfs none sys
mount -t tmpfs none dev/shm
[ -z "${2:-}" ] || mount --bind -o ro "$2" compiler
ip link set lo up 2>/dev/null || true
exec chroot . sh /check
"#;

/// In the root.
const CHECK: &str = r#"
set -eu
files() { find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /var/lib/dpkg -o -path /var/log \) -prune -o -print | sort; }
files >/tmp/before
dpkg -i /adverb.deb
adverb --version
adverb pingpong -n 10
adverb env
test -e /usr/share/man/man1/adverb-bench.1.gz
sh /readme
# What the container's image has: these files and those of the C compiler's and the C library's packages, no shell, and a
# user that is not root.
libraries=$(ldd /usr/bin/adverb /usr/lib/libadverb_*.so | awk '/=>/ { print $3 } /ld-linux/ { print $1 }' | sort -u)
if echo "$libraries" | grep -vE '/(lib(c|m|gcc_s)|ld-linux[^/]*)\.so'; then exit 1; fi
mkdir -p /image/proc
cp -L --parents /usr/bin/adverb /usr/lib/libadverb_*.so $libraries /image
mount --bind /proc /image/proc
chroot --userspec=65532:65532 /image /usr/bin/adverb pingpong -n 10
umount /image/proc
rm -rf /image /run/mount
dpkg -r adverb
files >/tmp/after
if diff /tmp/before /tmp/after | grep -v ' /tmp/after$' | grep '^[<>]'; then exit 1; fi
if ls /dev/shm | grep adverb; then exit 1; fi
"#;

/// In the root with a compiler: what the script does is the check.
const SOURCE_CHECK: &str = r#"
set -eu
export PATH=/cargo/bin:/compiler/bin:$PATH CARGO_HOME=/cargo CARGO_NET_OFFLINE=true
sh /readme
"#;

fn list(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut all = files::list(directory)?;
    all.retain(|path| path.is_file());
    all.sort();
    Ok(all)
}

fn version(root: &Path) -> Result<String, Failure> {
    let text = files::read(&root.join("Cargo.toml"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("version = \""));
    line.and_then(|rest| rest.strip_suffix('"'))
        .map(str::to_owned)
        .ok_or("Cargo.toml has no version".to_owned())
}

fn output(program: &str, words: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(program);
    command.args(words);
    Ok(String::from_utf8_lossy(&run(command)?.stdout).trim().to_owned())
}

fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| format!("{} is not UTF-8", path.display()))
}

fn file_name(path: &Path) -> Result<&str, Failure> {
    path.file_name()
        .and_then(|name| name.to_str())
        .ok_or_else(|| format!("{} has no name", path.display()))
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> Failure {
    move |error| format!("{what}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str) -> String {
        fs::read_to_string(crate::workspace_root().join(name)).unwrap_or_default()
    }

    #[test]
    fn images_and_ci_take_the_compiler_that_the_manifest_asks_for() {
        let manifest = page("Cargo.toml");
        let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""));
        let image =
            format!("docker.io/library/rust:{}-", line.unwrap_or_default().trim_end_matches('"'));
        for name in
            ["packaging/container/Containerfile", ".github/workflows/gate.yml", ".gitlab-ci.yml"]
        {
            assert!(page(name).contains(&image), "{name}: not {image}");
        }
    }

    #[test]
    fn both_forges_run_the_gate_of_the_tree_and_what_the_readme_says() {
        for command in [".ci/run", "cargo xtask dist --check --from-source"] {
            let step = format!("\n      - run: {command}\n");
            assert!(page(".github/workflows/gate.yml").contains(&step), "{command}");
            assert!(page(".gitlab-ci.yml").contains(&format!("\n    - {command}\n")), "{command}");
        }
    }

    #[test]
    fn the_image_is_for_a_user_that_is_not_root_and_has_what_the_package_has() {
        let text = page("packaging/container/Containerfile");
        assert!(
            text.lines()
                .rfind(|line| line.starts_with("FROM "))
                .is_some_and(|line| line.ends_with(":nonroot"))
        );
        for file in ["adverb", "libadverb_ibverbs.so", "libadverb_sockets.so"] {
            assert!(text.contains(&format!("target/gate/{file}")), "{file}");
        }
    }
}
