// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The weight of the cgroup of a VM's QEMU, for `mechanism = "weight"`.
//!
//! It is the cgroup's own weight, its *base*, times the CPUs given, divided by the least. The
//! holder gets the base before anything else is written. So the next daemon does not take a
//! raised weight for the base, wherever this one dies. A file is the same one while its inode
//! is: the kernel numbers those of cgroups, and uses no number twice.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek};
use std::iter::once;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{bail, Context, Result};
use hallway_membership::Uuid;

use crate::cgroup::{self, UNIFIED};
use crate::keeper::SavedWeight;

/// Controllers of version 1 and of version 2, and the file of each with the weight.
const FILES: [(&str, &str); 2] = [("cpu", "cpu.shares"), (UNIFIED, "cpu.weight")];
/// The first kernel thread, which starts the others.
const KTHREADD: &str = "2";
/// Cgroups that are looked at below that of a VM. libvirt makes one for each vCPU.
const FOLDERS_MAX: usize = 2048;

/// The weight of one cgroup.
#[derive(Debug, PartialEq, Eq)]
pub struct Weight {
    saved: SavedWeight,
    /// As it was last read. Nothing: not yet, by this daemon.
    now: Option<u32>,
    /// The kernel did not take another since then.
    refused: bool,
    reported: bool,
}

impl Weight {
    /// That of a cgroup which a daemon before this one found.
    pub fn recover(saved: SavedWeight) -> Self {
        Self {
            saved,
            now: None,
            refused: false,
            reported: false,
        }
    }

    /// Finds that of a VM's QEMU, with the threads of its vCPUs. An error if the cgroup is not
    /// this QEMU's alone, or the daemon cannot write there.
    pub fn find(proc: &Path, vm: Uuid, qemu: i32, threads: &[i32]) -> Result<Self> {
        let mut found = FILES.iter().filter_map(|(controller, file)| {
            Some((find_folder(proc, qemu, threads, controller)?, file))
        });
        let (folder, file) = found
            .next()
            .context("the cgroup of its QEMU is out of sight")?;
        // Those of a cgroup that has threads alone are out of sight.
        fs::read(folder.join("cgroup.procs")).with_context(|| folder.display().to_string())?;
        // Those of KVM and vhost are where their QEMU is.
        let is_other = |pid| pid != qemu && !is_kernel_thread(proc, pid);
        let other = find_process(&folder, &is_other, &mut FOLDERS_MAX.clone());
        if let Some(other) = other.with_context(|| format!("cgroup {}", folder.display()))? {
            bail!(
                "cgroup {} has process {other} beside QEMU's {qemu}: start each QEMU in a cgroup \
                 of its own, as libvirt does",
                folder.display()
            );
        }
        let path = folder.join(file);
        let file = open(&path).with_context(|| {
            format!(
                "{}: the cgroup needs the cpu controller, and the unit of hallwayd weight.conf",
                path.display()
            )
        })?;
        let base = read(&file, &path)?;
        Ok(Self {
            saved: SavedWeight {
                vm,
                id: identify(&file)?,
                file: path,
                base,
            },
            now: Some(base),
            refused: false,
            reported: false,
        })
    }

    /// Goes on from what was found before of the same cgroup. What others have set since is
    /// another base.
    pub fn follow(&mut self, before: &Self) {
        if before.now.is_none_or(|now| Some(now) == self.now) {
            self.saved.base = before.saved.base;
        }
    }

    /// Whether it is of the same cgroup.
    pub fn is_same(&self, other: &Self) -> bool {
        self.saved.id == other.saved.id
    }

    /// The VM to which one of these gives the same cgroup.
    pub fn find_user(&self, all: &[SavedWeight]) -> Option<Uuid> {
        let mut all = all.iter();
        all.find(|one| one.id == self.saved.id).map(|one| one.vm)
    }

    /// Whether this is the first report of what cannot be restored.
    pub fn report(&mut self) -> bool {
        !std::mem::replace(&mut self.reported, true)
    }

    /// What a later daemon needs.
    pub fn saved(&self) -> &SavedWeight {
        &self.saved
    }

    /// As it was last read.
    pub fn now(&self) -> Option<u32> {
        self.now
    }

    /// The CPUs of which it is the weight, where `min` have the base; 0: it is not raised.
    /// Nothing: it was not read yet.
    pub fn given(&self, min: u32) -> Option<u32> {
        let (now, base) = (self.now?, self.saved.base);
        let is_raised = now != base && base != 0;
        Some(if is_raised {
            // A weight is a whole number: it was rounded down.
            (now * min).div_ceil(base)
        } else {
            0
        })
    }

    fn wanted(&self, given: u32, min: u32) -> u32 {
        self.saved.base * given / min
    }

    /// Whether it is that of as many CPUs.
    pub fn is_of(&self, given: u32, min: u32) -> bool {
        self.now == Some(self.wanted(given, min))
    }

    /// Makes it that of as many CPUs. What the kernel refuses is tried again once it is found
    /// again.
    pub fn set(&mut self, given: u32, min: u32) -> Result<()> {
        if self.is_of(given, min) || self.refused {
            return Ok(());
        }
        let weight = self.wanted(given, min);
        self.refused = true;
        self.write(weight).with_context(|| {
            let file = self.saved.file.display();
            format!("weight {weight} for {file}")
        })?;
        self.refused = false;
        Ok(())
    }

    fn write(&mut self, weight: u32) -> Result<()> {
        let path = &self.saved.file;
        let file = open(path)?;
        if identify(&file)? != self.saved.id {
            bail!("another cgroup has that path now");
        }
        write(&file, weight)?;
        // From here on it is ours.
        self.now = None;
        let now = read(&file, path)?;
        self.now = Some(now);
        if now != weight {
            bail!("the kernel made it {now}");
        }
        Ok(())
    }

    /// Gives the cgroup its base back, unless another program has set a weight since. Another
    /// cgroup may have its path.
    pub fn restore(&mut self) -> io::Result<()> {
        let SavedWeight { id, file, base, .. } = &self.saved;
        let opened = match open(file) {
            Err(error) if is_gone(&error) => return Ok(()),
            opened => opened?,
        };
        if identify(&opened)? != *id {
            return Ok(());
        }
        let now = read(&opened, file).map_err(io::Error::other)?;
        if self.now.is_none_or(|ours| ours == now) && now != *base {
            write(&opened, *base)
                .or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })?;
        }
        Ok(())
    }
}

fn open(file: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(file)
}

/// Whether the cgroup was removed.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// Device and inode of a file.
fn identify(file: &File) -> io::Result<(u64, u64)> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

fn write(file: &File, weight: u32) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(weight.to_string().as_bytes(), 0)
}

/// Reads a file that may have been read or written before.
fn read(mut file: &File, path: &Path) -> Result<u32> {
    let mut text = String::new();
    let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
    read.with_context(|| path.display().to_string())?;
    text.trim()
        .parse()
        .with_context(|| format!("{}: {text:?}", path.display()))
}

/// The cgroup of systemd's unit that a QEMU is, or the one that has all of its threads: libvirt
/// makes one below the unit for each vCPU.
fn find_folder(proc: &Path, qemu: i32, threads: &[i32], controller: &str) -> Option<PathBuf> {
    let all = once(&qemu).chain(threads);
    let mut all = all.map(|id| cgroup::find_name(proc, &format!("{qemu}/task/{id}"), controller));
    let mut common = PathBuf::from(all.next()??);
    for name in all {
        let name = PathBuf::from(name?);
        while !name.starts_with(&common) {
            common.pop();
        }
    }
    let is_unit = |path: &&Path| {
        let kind = path.extension();
        kind.is_some_and(|kind| kind == "scope" || kind == "service")
    };
    let unit = common.ancestors().find(is_unit).unwrap_or(&common);
    cgroup::find_path(proc, unit.to_str()?, controller)
}

/// A process in a cgroup or below, where there are no more cgroups than `left`.
fn find_process(
    cgroup: &Path,
    is_it: &dyn Fn(i32) -> bool,
    left: &mut usize,
) -> io::Result<Option<i32>> {
    *left = left
        .checked_sub(1)
        .ok_or_else(|| io::Error::other(format!("it has more than {FOLDERS_MAX} cgroups")))?;
    match fs::read_to_string(cgroup.join("cgroup.procs")) {
        // It has threads of processes that a cgroup above names.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
        text => {
            let text = text?;
            let mut all = text.lines().flat_map(str::parse);
            if let Some(found) = all.find(|pid| is_it(*pid)) {
                return Ok(Some(found));
            }
        }
    }
    for entry in fs::read_dir(cgroup)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            match find_process(&entry.path(), is_it, left) {
                // That of a vCPU that was unplugged just now.
                Err(error) if is_gone(&error) => {}
                Ok(None) => {}
                found => return found,
            }
        }
    }
    Ok(None)
}

fn is_kernel_thread(proc: &Path, pid: i32) -> bool {
    let status = fs::read_to_string(proc.join(format!("{pid}/status"))).unwrap_or_default();
    let mut lines = status.lines();
    let parent = lines.find_map(|line| line.strip_prefix("PPid:"));
    parent.is_some_and(|parent| parent.trim() == KTHREADD)
}

#[cfg(test)]
mod tests {
    use super::*;

    const QEMU: i32 = 7;
    const VCPU: i32 = 8;
    const SCOPE: &str = "machine.slice/machine-qemu\\x2d1\\x2dweb1.scope";

    /// A host with `/proc` and cgroups of one version, which ends with the test.
    struct Host {
        root: PathBuf,
        version: usize,
    }

    impl Host {
        /// One of each version.
        fn all(name: &str) -> [Self; 2] {
            [0, 1].map(|version| {
                let name = format!("hallway-weight-{}-{name}{version}", std::process::id());
                let root = std::env::temp_dir().join(name);
                fs::create_dir_all(root.join("proc/self")).unwrap();
                let place = root.join("cgroup");
                let place = place.display();
                let mounts = [
                    format!("cgroup /cpuset cgroup rw,cpuset 0 0\ncgroup {place} cgroup rw,cpuacct,cpu 0 0\n"),
                    format!("cgroup /systemd cgroup rw,name=systemd 0 0\ncgroup2 {place} cgroup2 rw 0 0\n"),
                ];
                fs::write(root.join("proc/self/mounts"), &mounts[version]).unwrap();
                Self { root, version }
            })
        }

        fn folder(&self, cgroup: &str) -> PathBuf {
            self.root.join("cgroup").join(cgroup)
        }

        fn file(&self, cgroup: &str) -> PathBuf {
            self.folder(cgroup).join(FILES[self.version].1)
        }

        /// Makes a cgroup with this process and weight.
        fn make(&self, cgroup: &str, pid: i32, weight: u32) {
            fs::create_dir_all(self.folder(cgroup)).unwrap();
            for above in Path::new(cgroup).ancestors().skip(1) {
                let procs = self.folder("").join(above).join("cgroup.procs");
                File::options()
                    .create(true)
                    .append(true)
                    .open(procs)
                    .unwrap();
            }
            fs::write(self.file(cgroup), format!("{weight}\n")).unwrap();
            self.enter(cgroup, pid);
        }

        fn enter(&self, cgroup: &str, pid: i32) {
            fs::write(self.folder(cgroup).join("cgroup.procs"), format!("{pid}\n")).unwrap();
        }

        /// Has QEMU's threads in these cgroups.
        fn place(&self, cgroup: &str, vcpu: &str) {
            for (id, cgroup) in [(QEMU, cgroup), (VCPU, vcpu)] {
                let task = self.root.join(format!("proc/{QEMU}/task/{id}"));
                fs::create_dir_all(&task).unwrap();
                let lines = [
                    format!("9:name=systemd:/a\n4:cpuacct,cpu:/{cgroup}\n0::/b\n"),
                    format!("9:name=systemd:/a\n3:cpuset:/c\n0::/{cgroup}\n"),
                ];
                fs::write(task.join("cgroup"), &lines[self.version]).unwrap();
            }
        }

        fn find(&self) -> Result<Weight> {
            Weight::find(&self.root.join("proc"), Uuid([1; 16]), QEMU, &[VCPU])
        }

        fn weight(&self, cgroup: &str) -> u32 {
            let file = self.file(cgroup);
            read(&File::open(&file).unwrap(), &file).unwrap()
        }

        /// As after another look.
        fn find_again(&self, before: &Weight) -> Weight {
            let mut found = self.find().unwrap();
            assert!(found.is_same(before));
            found.follow(before);
            found
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    #[test]
    fn the_cgroup_of_a_qemu_is_found() {
        for host in Host::all("found") {
            for (cgroup, emulator, vcpu) in [
                (SCOPE, "/libvirt/emulator", "/libvirt/vcpu0"),
                ("system.slice/web1.service", "", ""),
                ("machine/web1", "/emulator", "/vcpu0"),
                ("vms/web1", "", ""),
            ] {
                host.make(cgroup, QEMU, 100);
                let [emulator, vcpu] = [emulator, vcpu].map(|below| format!("{cgroup}{below}"));
                for below in [&emulator, &vcpu] {
                    host.make(below, QEMU, 100);
                }
                host.place(&emulator, &vcpu);
                assert_eq!(host.find().unwrap().saved().file, host.file(cgroup));
            }
        }
    }

    #[test]
    fn a_cgroup_that_is_not_a_qemus_alone_is_refused() {
        for host in Host::all("others") {
            let error = || format!("{:#}", host.find().unwrap_err());
            assert!(error().contains("out of sight"));
            host.make("", 1, 100);
            host.place("", "");
            assert!(
                error().contains("has process 1 beside QEMU's 7"),
                "{}",
                error()
            );
            host.make(SCOPE, QEMU, 100);
            host.place(SCOPE, SCOPE);
            assert!(host.find().is_ok());
            host.make(&format!("{SCOPE}/below"), 9, 100);
            assert!(error().contains("has process 9 beside"), "{}", error());
            let kernel_thread = host.root.join("proc/9");
            fs::create_dir_all(&kernel_thread).unwrap();
            fs::write(kernel_thread.join("status"), "Pid:\t9\nPPid:\t2\n").unwrap();
            assert!(host.find().is_ok());
            fs::remove_file(host.file(SCOPE)).unwrap();
            assert!(error().contains("needs the cpu controller"), "{}", error());
        }
    }

    #[test]
    fn a_raised_weight_is_not_taken_for_the_base() {
        for host in Host::all("raised") {
            host.make(SCOPE, QEMU, 100);
            host.place(SCOPE, SCOPE);
            let mut weight = host.find().unwrap();
            assert_eq!(weight.given(2), Some(0));
            weight.set(3, 2).unwrap();
            assert_eq!(host.weight(SCOPE), 150);
            assert!(weight.is_of(3, 2));
            let weight = host.find_again(&weight);
            assert_eq!(weight.saved().base, 100);
            // The next daemon has what the holder kept.
            let recovered = Weight::recover(weight.saved().clone());
            assert_eq!((recovered.now(), recovered.given(2)), (None, None));
            let mut weight = host.find_again(&recovered);
            assert_eq!((weight.now(), weight.given(2)), (Some(150), Some(3)));
            weight.set(2, 2).unwrap();
            assert_eq!(host.weight(SCOPE), 100);
            // What another sets is one.
            host.make(SCOPE, QEMU, 70);
            let mut weight = host.find_again(&weight);
            weight.set(4, 2).unwrap();
            assert_eq!(host.weight(SCOPE), 140);
            weight.restore().unwrap();
            assert_eq!(host.weight(SCOPE), 70);
        }
    }

    #[test]
    fn a_weight_that_was_rounded_down_is_of_the_same_cpus() {
        for host in Host::all("rounded") {
            host.make(SCOPE, QEMU, 3);
            host.place(SCOPE, SCOPE);
            let mut weight = host.find().unwrap();
            weight.set(3, 2).unwrap();
            assert_eq!((host.weight(SCOPE), weight.given(2)), (4, Some(3)));
        }
    }

    #[test]
    fn the_weight_of_another_cgroup_is_left_alone() {
        for host in Host::all("left") {
            let raised = || {
                host.make(SCOPE, QEMU, 100);
                host.place(SCOPE, SCOPE);
                let mut weight = host.find().unwrap();
                weight.set(2, 1).unwrap();
                weight
            };
            // Its QEMU has gone, and another one has the cgroup.
            let mut weight = raised();
            host.enter(SCOPE, QEMU + 1);
            weight.restore().unwrap();
            assert_eq!(host.weight(SCOPE), 100);
            // Another program has set it.
            let mut weight = raised();
            host.make(SCOPE, QEMU, 30);
            weight.restore().unwrap();
            assert_eq!(host.weight(SCOPE), 30);
            // It has another path.
            let mut weight = raised();
            host.make("vms/web1", QEMU, 50);
            host.place("vms/web1", "vms/web1");
            assert!(!host.find().unwrap().is_same(&weight));
            weight.restore().unwrap();
            // Another cgroup has its path.
            let mut weight = raised();
            fs::rename(host.folder(SCOPE), host.folder("before")).unwrap();
            host.make(SCOPE, QEMU, 200);
            assert!(weight.set(4, 1).is_err());
            weight.restore().unwrap();
            assert_eq!((host.weight(SCOPE), host.weight("before")), (200, 200));
            // The cgroup has gone.
            let mut weight = raised();
            fs::remove_dir_all(host.folder(SCOPE)).unwrap();
            weight.restore().unwrap();
            assert!(!host.folder(SCOPE).exists());
            // It cannot be written.
            let mut weight = raised();
            fs::remove_file(host.file(SCOPE)).unwrap();
            fs::create_dir(host.file(SCOPE)).unwrap();
            weight.restore().unwrap_err();
            fs::remove_dir(host.file(SCOPE)).unwrap();
        }
    }

    #[test]
    fn what_the_kernel_refuses_is_tried_once() {
        for host in Host::all("refused") {
            host.make(SCOPE, QEMU, 100);
            host.place(SCOPE, SCOPE);
            let mut weight = host.find().unwrap();
            fs::rename(host.file(SCOPE), host.folder("before")).unwrap();
            weight.set(2, 1).unwrap_err();
            assert_eq!(weight.now(), Some(100));
            fs::rename(host.folder("before"), host.file(SCOPE)).unwrap();
            weight.set(2, 1).unwrap();
            assert_eq!(host.weight(SCOPE), 100);
            host.find_again(&weight).set(2, 1).unwrap();
            assert_eq!(host.weight(SCOPE), 200);
        }
    }
}
