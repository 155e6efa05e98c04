// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon in a directory of its own, and a QEMU whose guest the test plays.
//! Nothing sleeps to let something happen: all waiting is for a condition, with
//! a deadline.
#![allow(dead_code, missing_docs)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::IoSliceMut;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hallway_abi::region as abi;
use hallway_control::{ask, Answer, Query, Status};
use hallway_membership::Uuid;
use hallway_shm::Mapping;
use nix::errno::Errno;
use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::sys::socket::{
    connect, recvmsg, socket, AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    UnixAddr,
};

pub const SIZE: u64 = 16 << 20;

/// Waits for a condition, and says which one never came true.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    // Only a test that fails waits that long: the machine may run guests meanwhile.
    let deadline = Instant::now() + Duration::from_secs(300);
    while !condition() {
        assert!(Instant::now() < deadline, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A daemon in a directory of its own; both are gone when the test ends.
pub struct Daemon {
    pub dir: PathBuf,
    pub child: Child,
    pub regions: Vec<&'static str>,
    /// Name of the directory for files of regions.
    pub mem: &'static str,
    /// Options that the next one has besides.
    pub words: Vec<&'static str>,
}

fn command(dir: &Path, mem: &str, regions: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hallwayd"));
    command.arg("--run-dir").arg(dir.join("run"));
    command.arg("--region-dir").arg(dir.join(mem));
    for region in regions {
        command.args(["--region", region]);
    }
    if dir.join("hallwayd.toml").exists() {
        command.arg("--config").arg(dir.join("hallwayd.toml"));
    }
    if dir.join("notify.sock").exists() {
        command.env("NOTIFY_SOCKET", dir.join("notify.sock"));
    }
    command.args(["--log-level", "debug"]);
    command.env("HALLWAY_OUTSOURCE", dir.join("out/hallway-outsource"));
    command.env("HALLWAY_HOST", dir.join("out/hallway-host"));
    let log = File::options()
        .append(true)
        .create(true)
        .open(dir.join("log"))
        .unwrap();
    command.stderr(log).stdin(Stdio::null());
    command
}

impl Daemon {
    pub fn new() -> Self {
        Self::serving(&["default:16M:4"])
    }

    pub fn serving(regions: &[&'static str]) -> Self {
        Self::configured(regions, None)
    }

    pub fn configured(regions: &[&'static str], config: Option<&str>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // Short: a Unix socket's path has 107 bytes.
        let dir = std::env::temp_dir().join(format!("hwd-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        if let Some(config) = config {
            std::fs::write(dir.join("hallwayd.toml"), config).unwrap();
        }
        let child = command(&dir, "mem", regions).spawn().unwrap();
        let regions = regions.to_vec();
        let mut daemon = Self {
            dir,
            child,
            regions,
            mem: "mem",
            words: Vec::new(),
        };
        daemon.wait_ready();
        daemon
    }

    fn wait_ready(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while ask(&self.run(), Query::Status).is_err() {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("hallwayd ended with {status}: {}", self.log());
            }
            assert!(
                Instant::now() < deadline,
                "hallwayd never answered: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn run(&self) -> PathBuf {
        self.dir.join("run")
    }

    pub fn region_file(&self) -> PathBuf {
        self.dir.join("mem/default")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Kills it as nothing can catch.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, signal).unwrap();
    }

    /// Sends SIGHUP, and waits until hallwayd is ready: it answers no question meanwhile.
    pub fn reload(&self) {
        self.reload_by(|| self.signal(nix::sys::signal::Signal::SIGHUP));
    }

    /// Reloads the configuration in this way, and waits until hallwayd is ready.
    pub fn reload_by(&self, begin: impl FnOnce()) {
        let ready = || self.log().matches("ready socket").count();
        let before = ready();
        begin();
        until("it is ready again", || ready() > before);
    }

    pub fn start(&mut self) {
        let mut command = command(&self.dir, self.mem, &self.regions);
        self.child = command.args(&self.words).spawn().unwrap();
        self.wait_ready();
    }

    /// Runs another hallwayd on the same directory to its end.
    pub fn other(&self, arguments: &[&str]) -> Output {
        let mut command = command(&self.dir, self.mem, &self.regions);
        command
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .unwrap()
    }

    /// Runs another one, which has to fail; what it says.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let other = self.other(arguments);
        let said = String::from_utf8_lossy(&other.stderr).into_owned();
        assert!(!other.status.success(), "{said}");
        said
    }

    pub fn status(&self) -> Status {
        match ask(&self.run(), Query::Status).unwrap() {
            Answer::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    pub fn region(&self) -> Uuid {
        self.status().regions[0].uuid.parse().unwrap()
    }

    /// Waits for it: a holder that was just started is not itself yet.
    pub fn holder_pid(&self) -> i32 {
        let mut pid = None;
        until("a holder", || {
            pid = listener(&self.run().join("holder.sock"));
            pid.is_some()
        });
        pid.unwrap()
    }
}

/// The holder whose standard input listens at a path.
fn listener(path: &Path) -> Option<i32> {
    let inode = socket_inode(path)?;
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|pid| {
            let name = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            name.starts_with(b"hallwayd-holder\0") && stdin_inode(*pid).as_ref() == Some(&inode)
        })
}

fn socket_inode(path: &Path) -> Option<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    // Num RefCount Protocol Flags Type St Inode Path; flag 10000: it listens.
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find_map(|fields| {
            (fields.get(7) == Some(&path.to_str().unwrap()) && fields[3] == "00010000")
                .then(|| fields[6].to_string())
        })
}

/// Has a socket at which a process listens accept descriptors, as before Linux 6.16.
pub fn accept_descriptors(pid: u32, path: &Path) {
    let number = find_listening(pid, path).unwrap();
    let yes: libc::c_int = 1;
    // SAFETY: the calls take numbers, and an int that lives; the kernel makes the
    // descriptors for us.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        let process = OwnedFd::from_raw_fd(Errno::result(process).unwrap() as RawFd);
        let socket = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0);
        let socket = OwnedFd::from_raw_fd(Errno::result(socket).unwrap() as RawFd);
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            hallway_unix::SO_PASSRIGHTS,
            (&raw const yes).cast(),
            size_of_val(&yes) as libc::socklen_t,
        );
    }
}

/// The descriptor of a process that listens at a path.
pub fn find_listening(pid: u32, path: &Path) -> Option<RawFd> {
    let link = PathBuf::from(format!("socket:[{}]", socket_inode(path)?));
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut fds = fds.flatten();
    let fd = fds.find(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == link));
    fd?.file_name().to_str()?.parse().ok()
}

/// Whether the daemon answers, and not late.
pub fn answers(daemon: &Daemon) -> bool {
    let run = daemon.run();
    let (sender, answers) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(ask(&run, Query::Status).is_ok()));
    answers.recv_timeout(Duration::from_secs(60)) == Ok(true)
}

fn stdin_inode(pid: i32) -> Option<String> {
    let link = std::fs::read_link(format!("/proc/{pid}/fd/0")).ok()?;
    let link = link.to_string_lossy();
    Some(
        link.strip_prefix("socket:[")?
            .strip_suffix(']')?
            .to_string(),
    )
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = self.other(&["--stop"]);
        if std::thread::panicking() {
            eprintln!("--- log of hallwayd ---\n{}", self.log());
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A process that ends with the test.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A QEMU, and the guest in it.
pub struct Qemu {
    socket: UnixStream,
    /// Numbers as they came, with whether a descriptor came along.
    pub messages: Vec<(i64, bool)>,
    /// Doorbells of others, by peer id.
    pub doorbells: BTreeMap<u16, OwnedFd>,
    own: Option<OwnedFd>,
    page: Option<Mapping>,
    serial: u32,
    pub uuid: Uuid,
    /// Minor version of the ABI that its guest says.
    pub minor: u16,
    pub reads: bool,
}

impl Qemu {
    /// Connects, and reads what realize waits for.
    pub fn new(daemon: &Daemon) -> Self {
        Self::connect(daemon).realized()
    }

    fn realized(mut self) -> Self {
        until("the greeting", || {
            self.read();
            self.own.is_some()
        });
        self
    }

    /// Connects as a process that is not the one of the test, and has ended.
    pub fn in_another_process(daemon: &Daemon) -> Self {
        let (qemu, mut process) = Self::in_process(daemon, Command::new("true"));
        assert!(process.0.wait().unwrap().success());
        qemu
    }

    /// Connects as a process of its own.
    pub fn in_process(daemon: &Daemon, mut process: Command) -> (Self, Process) {
        let (kind, flags) = (SockType::Stream, SockFlag::SOCK_CLOEXEC);
        let socket = socket(AddressFamily::Unix, kind, flags, None).unwrap();
        let (raw, path) = (socket.as_raw_fd(), daemon.run().join("hallwayd.sock"));
        let address = UnixAddr::new(&path).unwrap();
        // SAFETY: all that happens between fork and exec is a system call.
        unsafe { process.pre_exec(move || Ok(connect(raw, &address)?)) };
        let child = process.spawn().unwrap();
        (Self::over(socket.into()).realized(), Process(child))
    }

    /// Connects, and reads nothing.
    pub fn connect(daemon: &Daemon) -> Self {
        Self::over(UnixStream::connect(daemon.run().join("hallwayd.sock")).unwrap())
    }

    fn over(socket: UnixStream) -> Self {
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            messages: Vec::new(),
            doorbells: BTreeMap::new(),
            own: None,
            page: None,
            serial: 0,
            uuid: Uuid::random().unwrap(),
            minor: abi::MINOR,
            reads: true,
        }
    }

    /// What QEMU's main loop does. True while the connection lives.
    pub fn read(&mut self) -> bool {
        while self.reads {
            let mut bytes = [0; 8];
            let mut space = nix::cmsg_space!([RawFd; 1]);
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let result =
                recvmsg::<UnixAddr>(self.socket.as_raw_fd(), &mut parts, Some(&mut space), flags);
            let message = match result {
                Ok(message) => message,
                Err(Errno::EAGAIN) => return true,
                Err(error) => panic!("{error}"),
            };
            let mut fd = None;
            for control in message.cmsgs().unwrap() {
                if let ControlMessageOwned::ScmRights(fds) = control {
                    // SAFETY: the kernel just made this descriptor for us.
                    fd = Some(unsafe { OwnedFd::from_raw_fd(fds[0]) });
                }
            }
            match message.bytes {
                0 => return false,
                8 => {}
                other => panic!("a message of {other} bytes"),
            }
            let number = i64::from_le_bytes(bytes);
            self.messages.push((number, fd.is_some()));
            match (number, fd) {
                // A second greeting: QEMU refuses it, with a message in its log.
                (-1, Some(_)) if self.page.is_some() => {}
                (0, None) if self.page.is_some() => {}
                (-1, Some(fd)) => {
                    assert_eq!(
                        File::from(fd.try_clone().unwrap())
                            .metadata()
                            .unwrap()
                            .len(),
                        4096
                    );
                    self.page = Some(Mapping::new(fd, abi::PAGE_SIZE).unwrap());
                }
                (0, Some(fd)) => self.own = self.own.take().or(Some(fd)),
                (0, None) => assert!(self.messages.len() <= 2, "no greeting"),
                (id, Some(fd)) => {
                    // QEMU refuses a second descriptor for one vector.
                    self.doorbells.entry(id.try_into().unwrap()).or_insert(fd);
                }
                (id, None) => panic!("heard that peer {id} left"),
            }
        }
        true
    }

    pub fn page(&self) -> &Mapping {
        self.page.as_ref().unwrap()
    }

    /// Whether the device's interrupt came since the last look.
    pub fn rung(&self) -> bool {
        let mut count = [0; 8];
        nix::unistd::read(self.own.as_ref().unwrap(), &mut count).is_ok()
    }

    /// Makes writes to the guest's doorbell and the daemon's wait: both have all rings
    /// that they can have, and QEMU shares their flags.
    pub fn fill_doorbells(&self) {
        for doorbell in [self.own.as_ref().unwrap(), &self.doorbells[&abi::DAEMON_ID]] {
            let _ = nix::unistd::read(doorbell, &mut [0; 8]);
            nix::unistd::write(doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            fcntl(doorbell, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        }
    }

    /// What the guest's write into the doorbell register does.
    pub fn ring(&self, id: u16) {
        let doorbell = self
            .doorbells
            .get(&id)
            .unwrap_or_else(|| panic!("QEMU knows no peer {id}"));
        nix::unistd::write(doorbell, &1u64.to_ne_bytes()).unwrap();
    }

    fn request_at(entry: usize) -> usize {
        offset_of!(abi::Page, entry) + entry * size_of::<abi::PageEntry>()
    }

    fn reply_at(entry: usize) -> usize {
        Self::request_at(entry) + offset_of!(abi::PageEntry, reply)
    }

    /// Writes a request and rings, without waiting.
    pub fn ask(&mut self, entry: usize, command: u32, region: Uuid, major: u16) -> u32 {
        self.serial += 1;
        let at = |offset: usize| Self::request_at(entry) + offset;
        let page = self.page();
        page.write_u16(at(offset_of!(abi::Request, major)), major);
        page.write_u16(at(offset_of!(abi::Request, minor)), self.minor);
        page.write_u32(at(offset_of!(abi::Request, command)), command);
        page.write_bytes(at(offset_of!(abi::Request, region)), &region.0);
        page.write_bytes(at(offset_of!(abi::Request, vm)), &self.uuid.0);
        page.write_bytes(at(offset_of!(abi::Request, name)), b"guest\x1b[1m\0");
        page.write_u32(at(offset_of!(abi::Request, serial)), self.serial);
        self.ring(abi::DAEMON_ID);
        self.serial
    }

    /// Whether it has all that realize waits for.
    pub fn greeted(&self) -> bool {
        self.own.is_some()
    }

    /// Whether the last request was answered.
    pub fn answered(&self, entry: usize) -> bool {
        self.replied(entry) == self.serial
    }

    pub fn replied(&self, entry: usize) -> u32 {
        self.page()
            .read_u32(Self::reply_at(entry) + offset_of!(abi::Reply, serial))
    }

    /// Waits for the reply to the last request; its status.
    pub fn reply(&mut self, entry: usize) -> u32 {
        until("a reply", || {
            self.read();
            self.answered(entry)
        });
        self.status(entry)
    }

    pub fn status(&self, entry: usize) -> u32 {
        self.page()
            .read_u32(Self::reply_at(entry) + offset_of!(abi::Reply, status))
    }

    /// Slot and generation that the last reply gives.
    pub fn place(&self, entry: usize) -> (usize, u32) {
        let at = |offset: usize| Self::reply_at(entry) + offset;
        (
            self.page().read_u32(at(offset_of!(abi::Reply, slot))) as usize,
            self.page().read_u32(at(offset_of!(abi::Reply, generation))),
        )
    }

    /// Slot of the outsourcer that the last reply gives.
    pub fn outsourcer(&self, entry: usize) -> u32 {
        let at = Self::reply_at(entry) + offset_of!(abi::Reply, outsourcer);
        self.page().read_u32(at)
    }

    /// How the key of its region begins, by the page.
    pub fn region_key(&self, entry: usize) -> [u8; 8] {
        let keys = offset_of!(abi::Page, region_key);
        self.page().read_bytes(keys + 8 * entry)
    }

    /// CID of its VM, by the page; 0: that of its UUID.
    pub fn cid(&self) -> u32 {
        self.page().read_u32(offset_of!(abi::Page, cid))
    }

    /// CID of the one other member of its region, by the page.
    pub fn peer_cid(&self, entry: usize) -> u32 {
        let peers = offset_of!(abi::Page, peer_cid);
        self.page().read_u32(peers + 4 * entry)
    }

    pub fn join(&mut self, region: Uuid) -> u32 {
        self.ask(0, abi::COMMAND_JOIN, region, abi::MAJOR);
        self.reply(0)
    }

    pub fn leave(&mut self, region: Uuid) -> u32 {
        self.ask(0, abi::COMMAND_LEAVE, region, abi::MAJOR);
        self.reply(0)
    }

    pub fn slot(&self) -> usize {
        self.place(0).0
    }

    pub fn generation(&self) -> u32 {
        self.place(0).1
    }

    /// Peer id that rings a slot.
    pub fn doorbell(&self, slot: usize) -> u16 {
        self.doorbell_in(0, slot)
    }

    /// Peer id that rings a slot of the region that an entry is about.
    pub fn doorbell_in(&self, entry: usize, slot: usize) -> u16 {
        self.page()
            .read_u16(Self::reply_at(entry) + offset_of!(abi::Reply, doorbell) + slot * 2)
    }

    /// Rings a member, and waits for it to hear.
    pub fn reaches(&mut self, other: &mut Qemu) {
        until("a doorbell id", || {
            self.read();
            other.read();
            self.doorbell(other.slot()) != 0
        });
        while other.rung() {}
        self.ring(self.doorbell(other.slot()));
        assert!(other.rung());
    }
}

/// The region, as a guest maps it.
pub fn region_memory(daemon: &Daemon) -> Mapping {
    memory_of(daemon.region_file(), SIZE)
}

/// A region's file, as a guest maps it.
pub fn memory_of(path: impl AsRef<Path>, size: u64) -> Mapping {
    let file = File::options().read(true).write(true).open(path).unwrap();
    Mapping::new(file, size as usize).unwrap()
}

fn member_at(slot: usize) -> usize {
    offset_of!(abi::Region, member) + slot * size_of::<abi::Member>()
}

pub fn member_state(memory: &Mapping, slot: usize) -> u32 {
    memory.read_u32(member_at(slot) + offset_of!(abi::Member, state))
}

pub fn member_generation(memory: &Mapping, slot: usize) -> u32 {
    memory.read_u32(member_at(slot) + offset_of!(abi::Member, generation))
}

pub fn member_uuid(memory: &Mapping, slot: usize) -> Uuid {
    Uuid(memory.read_bytes(member_at(slot) + offset_of!(abi::Member, uuid)))
}

pub fn slice_offset(memory: &Mapping, slot: usize) -> usize {
    memory.read_u64(member_at(slot) + offset_of!(abi::Member, slice_offset)) as usize
}

pub fn change(memory: &Mapping) -> u32 {
    memory.read_u32(offset_of!(abi::Region, change))
}
