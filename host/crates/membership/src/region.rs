// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A region's memory and its header.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use hallway_abi::region as abi;
use hallway_shm::{allocate, sealed_memory, Mapping, Shared};
use nix::sys::statfs::{fstatfs, HUGETLBFS_MAGIC, TMPFS_MAGIC};
use nix::sys::statvfs::Statvfs;
use serde::{Deserialize, Serialize};

use crate::lock::{is_own, region_lock, FileLock};
use crate::text::{printable, random_bytes, Uuid};

/// The slot of the host itself.
pub const HOST_SLOT: usize = 0;

const SLICE_ALIGN: u64 = 4096;

/// Why a region cannot be opened; each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The size is not valid.
    #[error("region size {size} is not a power of two: give one such as 64M or 256M")]
    NotPowerOfTwo {
        /// The size that was asked for.
        size: u64,
    },
    /// The slices would be too small.
    #[error(
        "a region of {size} bytes gives each of its {slots} members less than {} MiB: make it \
         larger, or lower its number of slots",
        abi::SLICE_MIN >> 20
    )]
    TooSmall {
        /// Bytes of the region.
        size: u64,
        /// Slots of the region.
        slots: u32,
    },
    /// The number of slots is not valid.
    #[error("a region has 2 to {} slots, not {slots}", abi::SLOTS_MAX)]
    Slots {
        /// The number that was asked for.
        slots: u32,
    },
    /// There is no room for the memory.
    #[error(
        "{free} bytes of memory are available on this host, and the region needs {size}: make \
         the region smaller, or free some memory"
    )]
    NoMemory {
        /// Bytes that are available.
        free: u64,
        /// Bytes of the region.
        size: u64,
    },
    /// The memory that the holder kept is not that of the region.
    #[error(
        "the memory that the holder kept is not that of the region: put the VMs back on TCP with \
         hallwayd --stop, and start again"
    )]
    Lost,
    /// The memory cannot be made.
    #[error("the memory cannot be made: {0}")]
    Memory(io::Error),
    /// There is no room for the file.
    #[error(
        "{path}: {free} bytes are free there, the region needs {size}: make the region smaller, \
         free some memory, or give another --region-dir"
    )]
    NoRoom {
        /// Path of the file.
        path: PathBuf,
        /// Bytes that are free in the file system.
        free: u64,
        /// Bytes of the region.
        size: u64,
    },
    /// Something else than a file has the region's name.
    #[error("{path} is no plain file: move it away and start again")]
    NotFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is not a region.
    #[error("{path} is not a Hallway region (its magic is wrong): move it away and start again")]
    Magic {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file is a region of another version.
    #[error(
        "{path} is a region of ABI version {found}, and this hallwayd speaks {}: stop the VMs \
         that map it, remove it and start again, or run the hallwayd that made it",
        abi::MAJOR
    )]
    Version {
        /// Path of the file.
        path: PathBuf,
        /// Its major version.
        found: u16,
    },
    /// The file has other dimensions.
    #[error(
        "{path} has {found}, and {wanted} was asked for: ask for what it has, or stop the VMs \
         that map it, remove it and start again"
    )]
    Dimensions {
        /// Path of the file.
        path: PathBuf,
        /// Dimensions of the file.
        found: String,
        /// Dimensions that were asked for.
        wanted: String,
    },
    /// Others may read or write the file.
    #[error(
        "{path} has mode {mode:04o}: any user can read and write the VMs' traffic. Run chmod \
         0600 on it (0660 if QEMU runs under a group of its own)"
    )]
    Permissions {
        /// Path of the file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Another user made the file.
    #[error(
        "{path} belongs to user {uid}, with full access to the VMs' traffic: stop the VMs that \
         map it, remove it and start again"
    )]
    Owner {
        /// Path of the file.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// Another daemon serves the file.
    #[error("{path} is served by another hallwayd: end that one, or give another --region-dir")]
    Busy {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file was removed while it was served.
    #[error(
        "{path} was removed while VMs mapped it: put them back on TCP with hallwayd --stop, and \
         start again"
    )]
    Gone {
        /// Path of the file.
        path: PathBuf,
    },
    /// The operating system refuses.
    #[error("{path}: {error}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

/// How a region is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    size: u64,
    slots: u32,
}

impl Geometry {
    /// Checks that a region of `size` bytes has room for `slots` members.
    pub fn new(size: u64, slots: u32) -> Result<Self, Error> {
        if !size.is_power_of_two() {
            return Err(Error::NotPowerOfTwo { size });
        }
        if !(2..=abi::SLOTS_MAX as u32).contains(&slots) {
            return Err(Error::Slots { slots });
        }
        let geometry = Self { size, slots };
        if size <= abi::HEADER_SIZE as u64 || geometry.slice_size() < abi::SLICE_MIN {
            return Err(Error::TooSmall { size, slots });
        }
        Ok(geometry)
    }

    /// Bytes of the whole region.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Number of slots, the host's among them.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Bytes of each slice.
    pub fn slice_size(&self) -> u64 {
        (self.size - abi::HEADER_SIZE as u64) / u64::from(self.slots) / SLICE_ALIGN * SLICE_ALIGN
    }

    /// Offset of a slot's slice.
    pub fn slice_offset(&self, slot: usize) -> u64 {
        abi::HEADER_SIZE as u64 + slot as u64 * self.slice_size()
    }
}

/// The occupant of one slot, in the private header.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// UUID of its VM.
    pub uuid: Uuid,
    /// Its generation; 0: the slot was never used.
    pub generation: u32,
    /// Whether it is a member now.
    pub present: bool,
    /// Its name; printable.
    pub name: String,
    /// CID that the configuration gave its VM as it joined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cid: Option<u32>,
}

/// The private header: what is in the region is only a copy of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// UUID of the region.
    pub uuid: Uuid,
    /// Key of the connections' tokens.
    pub key: [u8; 16],
    /// Bytes of the whole region.
    pub size: u64,
    /// Counts the changes of the members.
    pub change: u32,
    /// The occupants, one for each slot.
    pub members: Vec<Member>,
}

/// Where the memory of a region is.
enum Place {
    /// In no file system; all that have the descriptor share it.
    Sealed(OwnedFd),
    /// In a file, which members of its group can open.
    File {
        path: PathBuf,
        file: File,
        /// It was not there before.
        is_new: bool,
        /// Keeps other daemons out: two would take each other's members for scribbles
        /// on the header.
        _lock: FileLock,
    },
}

/// A region that is open.
pub struct Region {
    /// The private header, which decides. [`Region::publish`] copies it into the region.
    pub header: Header,
    geometry: Geometry,
    place: Place,
    memory: Shared,
    image: Vec<u64>,
    repairs: u64,
}

impl Region {
    /// Makes a region in no file system: no user can truncate it, nor take its memory.
    /// The name shows in `/proc`.
    pub fn make(name: &str, geometry: Geometry) -> Result<Self, Error> {
        check_memory(geometry.size)?;
        let memory = sealed_memory(&format!("hallway-{name}"), geometry.size as usize);
        let memory = memory.map_err(Error::Memory)?;
        let header = Header::new(geometry).map_err(Error::Memory)?;
        let mut region = Self::map(memory, geometry, header)?;
        region.publish();
        Ok(region)
    }

    /// Takes up such a region, as a daemon before this one left it with the holder. What that
    /// one has not published is not, yet: other things come before.
    pub fn take_up(memory: OwnedFd, geometry: Geometry, header: Header) -> Result<Self, Error> {
        let file = File::from(memory);
        if file.metadata().map_err(Error::Memory)?.len() != geometry.size {
            return Err(Error::Lost);
        }
        Self::map(file.into(), geometry, header)
    }

    fn map(memory: OwnedFd, geometry: Geometry, header: Header) -> Result<Self, Error> {
        let mapping = Mapping::new(&memory, geometry.size as usize).map_err(Error::Memory)?;
        let place = Place::Sealed(memory);
        Ok(Self::assemble(
            place,
            Shared::Mapped(mapping),
            geometry,
            header,
        ))
    }

    fn assemble(place: Place, memory: Shared, geometry: Geometry, header: Header) -> Self {
        Self {
            header,
            geometry,
            place,
            memory,
            image: Vec::new(),
            repairs: 0,
        }
    }

    /// Opens the region in the file `path`, or makes it. `known` is the private header
    /// of the daemon before this one; without it, the header in the file counts, with
    /// every member absent.
    pub fn open(path: &Path, geometry: Geometry, known: Option<Header>) -> Result<Self, Error> {
        let lock_path = region_lock(path);
        let lock = FileLock::take(&lock_path).map_err(|error| Error::Io {
            path: lock_path.clone(),
            error,
        })?;
        let lock = lock.ok_or_else(|| Error::Busy { path: path.into() })?;
        // Only under the lock: what another daemon makes meanwhile is not ours to remove.
        let is_new = std::fs::symlink_metadata(path).is_err();
        let may_make = known.is_none();
        let opened = Self::open_file(path, geometry, known, is_new);
        if opened.is_err() && is_new && may_make {
            let _ = std::fs::remove_file(path);
        }
        let (file, memory, header) = opened?;
        let place = Place::File {
            path: path.into(),
            file,
            is_new,
            _lock: lock,
        };
        let mut region = Self::assemble(place, memory, geometry, header);
        region.publish();
        Ok(region)
    }

    fn open_file(
        path: &Path,
        geometry: Geometry,
        known: Option<Header>,
        is_new: bool,
    ) -> Result<(File, Shared, Header), Error> {
        let io = |error| Error::Io {
            path: path.into(),
            error,
        };
        // Opening what is no file may wait for ever.
        if !is_new && !std::fs::symlink_metadata(path).map_err(io)?.is_file() {
            return Err(Error::NotFile { path: path.into() });
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(known.is_none())
            .truncate(false)
            .mode(0o600)
            .custom_flags(nix::fcntl::OFlag::O_NOFOLLOW.bits())
            .open(path)
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound if known.is_some() => Error::Gone { path: path.into() },
                _ => io(error),
            })?;
        let meta = file.metadata().map_err(io)?;
        if !is_own(meta.uid()) {
            return Err(Error::Owner {
                path: path.into(),
                uid: meta.uid(),
            });
        }
        let fresh = known.is_none() && (meta.len() == 0 || is_blank(&file, meta.len(), geometry));
        if meta.mode() & 0o007 != 0 {
            return Err(Error::Permissions {
                path: path.into(),
                mode: meta.mode() & 0o7777,
            });
        }
        let is_known = known.is_some();
        let header = if let Some(header) = known {
            header
        } else if fresh {
            if is_new {
                file.set_permissions(PermissionsExt::from_mode(0o600))
                    .map_err(io)?;
            }
            Header::new(geometry).map_err(io)?
        } else {
            read_header(&file, path, meta.len(), geometry)?
        };
        // What others did to a file that is in use is for `mend`: it is served all the same.
        if !is_known {
            take_memory(&file, path, geometry)?;
        } else if meta.len() == geometry.size {
            let _ = take_memory(&file, path, geometry);
        }
        let memory = Shared::File(file.try_clone().map_err(io)?);
        Ok((file, memory, header))
    }

    /// Whether a file has a region's magic, and no daemon serves it.
    pub fn is_abandoned(path: &Path) -> bool {
        // Opening what is no file may wait for ever.
        let is_file = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file());
        is_file
            && File::open(path).is_ok_and(|file| has_magic(&file))
            && FileLock::take(&region_lock(path)).is_ok_and(|lock| lock.is_some())
    }

    /// Removes a region's file, and what a daemon that was killed left beside it.
    pub fn remove_file(path: &Path) {
        let _ = std::fs::remove_file(path);
        let _ = std::fs::remove_file(region_lock(path));
    }

    /// Path of the region's file, if it has one.
    pub fn file(&self) -> Option<&Path> {
        match &self.place {
            Place::File { path, .. } => Some(path),
            Place::Sealed(_) => None,
        }
    }

    /// Whether the region has a file that was not there before.
    pub fn has_new_file(&self) -> bool {
        matches!(self.place, Place::File { is_new: true, .. })
    }

    /// The descriptor of the region's memory, if it is in no file.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.place {
            Place::File { .. } => None,
            Place::Sealed(memory) => Some(memory.as_fd()),
        }
    }

    /// Whether the region is in memory: what is in a file on a disk is written there.
    pub fn is_in_memory(&self) -> bool {
        match &self.place {
            Place::File { file, .. } => is_memory(file),
            Place::Sealed(_) => true,
        }
    }

    /// The region's geometry.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The region's memory.
    pub fn memory(&self) -> &Shared {
        &self.memory
    }

    /// How often others changed the header, and [`Region::guard`] put it back.
    pub fn repairs(&self) -> u64 {
        self.repairs
    }

    /// A generation that no member of this region has had yet.
    fn next_generation(&self) -> u32 {
        let last = self
            .header
            .members
            .iter()
            .map(|m| m.generation)
            .max()
            .unwrap_or(0);
        last.wrapping_add(1).max(1)
    }

    /// The slot that a VM gets: the one that it had before, else one never used, else
    /// that of the absent member that joined longest ago.
    pub fn slot_for(&self, vm: Uuid) -> Option<usize> {
        let guests = || self.header.members.iter().enumerate().skip(HOST_SLOT + 1);
        let own = guests().find(|(_, m)| m.generation != 0 && m.uuid == vm);
        let free = || {
            guests()
                .filter(|(_, m)| !m.present)
                .min_by_key(|(_, m)| m.generation)
        };
        own.or_else(free).map(|(slot, _)| slot)
    }

    /// Enters a member into the private header, with a new generation. `cid`: the one that the
    /// configuration gives it.
    pub fn enter(&mut self, slot: usize, uuid: Uuid, name: &str, cid: Option<u32>) -> u32 {
        let generation = self.next_generation();
        self.header.members[slot] = Member {
            uuid,
            generation,
            present: true,
            name: printable(name.as_bytes()),
            cid,
        };
        self.header.change = self.header.change.wrapping_add(1);
        generation
    }

    /// Marks a member absent in the private header.
    pub fn leave(&mut self, slot: usize) {
        self.header.members[slot].present = false;
        self.header.change = self.header.change.wrapping_add(1);
    }

    /// Enters the host as a member, and sets up its slice. It publishes no address, so
    /// that no member offers it a ring.
    pub fn enter_host(&mut self, uuid: Uuid, name: &str) {
        self.enter(HOST_SLOT, uuid, name, None);
        self.set_up_slice();
    }

    fn set_up_slice(&self) {
        let generation = self.header.members[HOST_SLOT].generation;
        let base = self.geometry.slice_offset(HOST_SLOT) as usize;
        let at = |offset: usize| base + offset;
        self.memory.write_u64(at(offset_of!(abi::Slice, magic)), 0);
        self.memory
            .write_u32(at(offset_of!(abi::Slice, address_count)), 0);
        self.memory
            .write_u32(at(offset_of!(abi::Slice, address_seq)), 0);
        self.memory
            .write_u32(at(offset_of!(abi::Slice, generation)), generation);
        self.memory
            .write_u64(at(offset_of!(abi::Slice, magic)), abi::SLICE_MAGIC);
    }

    /// Counts the host's heartbeat up.
    pub fn beat(&self, count: u32) {
        let base = self.geometry.slice_offset(HOST_SLOT) as usize;
        self.memory
            .write_u32(base + offset_of!(abi::Slice, heartbeat), count);
    }

    /// Copies the private header into the region: members first, then their generations, by
    /// which guests notice that the rest is another, then `change`, and the magic last.
    pub fn publish(&mut self) {
        self.image = render(&self.header, self.geometry);
        let change = offset_of!(abi::Region, slots);
        let first = offset_of!(abi::Region, member) + offset_of!(abi::Member, generation);
        let slots = 0..self.header.members.len();
        let generations = slots.map(|slot| (first + slot * size_of::<abi::Member>()) / 8);
        let late: Vec<usize> = [0, change / 8].into_iter().chain(generations).collect();
        for (n, word) in self.image.iter().enumerate() {
            if !late.contains(&n) {
                self.memory.write_u64(n * 8, *word);
            }
        }
        for n in late.into_iter().rev() {
            self.memory.write_u64(n * 8, self.image[n]);
        }
    }

    /// Compares the region's header with the private one, and puts back what
    /// differs. True if something did.
    pub fn guard(&mut self) -> bool {
        let mut words = vec![0; self.image.len()];
        self.memory.read_words(0, &mut words);
        let pairs = self.image.iter().zip(&words).enumerate();
        let mut scribbled = false;
        for (n, (word, _)) in pairs.filter(|(_, (word, seen))| word != seen) {
            self.memory.write_u64(n * 8, *word);
            scribbled = true;
        }
        self.repairs += u64::from(scribbled);
        scribbled
    }

    /// Whether no other process has changed the length of the region's file.
    pub fn is_whole(&self) -> bool {
        let Place::File { file, .. } = &self.place else {
            return true;
        };
        let meta = file.metadata();
        meta.is_ok_and(|meta| meta.len() == self.geometry.size)
    }

    /// Puts back the length of a file that another process has changed, and all of its
    /// memory, with the header. True if it was changed. What members wrote is lost.
    pub fn mend(&mut self) -> Result<bool, Error> {
        if self.is_whole() {
            return Ok(false);
        }
        let Place::File { path, file, .. } = &self.place else {
            return Ok(false);
        };
        take_memory(file, path, self.geometry)?;
        self.publish();
        self.set_up_slice();
        Ok(true)
    }
}

impl Header {
    fn new(geometry: Geometry) -> io::Result<Self> {
        Ok(Self {
            uuid: Uuid::random()?,
            key: random_bytes()?,
            size: geometry.size,
            change: 0,
            members: vec![Member::default(); geometry.slots as usize],
        })
    }
}

fn has_magic(file: &File) -> bool {
    let mut magic = [0; 8];
    file.read_exact_at(&mut magic, 0).is_ok() && u64::from_le_bytes(magic) == abi::REGION_MAGIC
}

/// Whether a file has the right length and a header of zeros: QEMU made it, or a
/// daemon that died before it could write one.
fn is_blank(file: &File, length: u64, geometry: Geometry) -> bool {
    let mut bytes = vec![0; abi::HEADER_SIZE];
    length == geometry.size
        && file.read_exact_at(&mut bytes, 0).is_ok()
        && bytes.iter().all(|byte| *byte == 0)
}

/// Gives a file its length, and all of its memory.
fn take_memory(file: &File, path: &Path, geometry: Geometry) -> Result<(), Error> {
    let io = |error| Error::Io {
        path: path.into(),
        error,
    };
    let stat = nix::sys::statvfs::fstatvfs(file).map_err(|error| io(error.into()))?;
    let free = free_bytes(&stat);
    let taken = file.metadata().map_err(io)?.blocks() * 512;
    let lacks = geometry.size.saturating_sub(taken);
    let no_room = || Error::NoRoom {
        path: path.into(),
        free,
        size: lacks,
    };
    if free < lacks {
        return Err(no_room());
    }
    if is_memory(file) {
        check_memory(lacks)?;
    }
    file.set_len(geometry.size).map_err(io)?;
    allocate(file, geometry.size).map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull => no_room(),
        _ => io(error),
    })
}

/// Refuses to take more memory than is available, in bytes: the kernel would kill processes
/// before it refuses.
///
/// # Errors
/// [`Error::NoMemory`].
pub fn check_memory(size: u64) -> Result<(), Error> {
    let table = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = table.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    match number.and_then(|number| number.parse::<u64>().ok()) {
        Some(free) if free << 10 < size => Err(Error::NoMemory {
            free: free << 10,
            size,
        }),
        _ => Ok(()),
    }
}

/// Refuses to make files in a directory for which it has no room, in bytes. One that is not
/// there yet has room.
///
/// # Errors
/// [`Error::NoRoom`].
pub fn check_room(dir: &Path, size: u64) -> Result<(), Error> {
    match nix::sys::statvfs::statvfs(dir).map(|stat| free_bytes(&stat)) {
        Ok(free) if free < size => Err(Error::NoRoom {
            path: dir.into(),
            free,
            size,
        }),
        _ => Ok(()),
    }
}

fn free_bytes(stat: &Statvfs) -> u64 {
    stat.blocks_available() * stat.fragment_size()
}

/// Whether the files of a directory are memory of the host.
pub fn is_in_memory(dir: &Path) -> bool {
    File::open(dir).is_ok_and(|dir| is_memory(&dir))
}

fn is_memory(file: &File) -> bool {
    let kinds = [TMPFS_MAGIC, HUGETLBFS_MAGIC];
    fstatfs(file).is_ok_and(|stat| kinds.contains(&stat.filesystem_type()))
}

fn check_length(path: &Path, length: u64, geometry: Geometry) -> Result<(), Error> {
    if length != geometry.size {
        return Err(Error::Dimensions {
            path: path.into(),
            found: format!("{length} bytes"),
            wanted: format!("{} bytes", geometry.size),
        });
    }
    Ok(())
}

/// Reads the header of a file that another daemon made. Members may still map it.
fn read_header(file: &File, path: &Path, length: u64, geometry: Geometry) -> Result<Header, Error> {
    let mut bytes = vec![0; size_of::<abi::Region>()];
    if length < bytes.len() as u64 || file.read_exact_at(&mut bytes, 0).is_err() {
        return Err(Error::Magic { path: path.into() });
    }
    if u64_at(&bytes, offset_of!(abi::Region, magic)) != abi::REGION_MAGIC {
        return Err(Error::Magic { path: path.into() });
    }
    let major = u16_at(&bytes, offset_of!(abi::Region, major));
    if major != abi::MAJOR {
        return Err(Error::Version {
            path: path.into(),
            found: major,
        });
    }
    check_length(path, length, geometry)?;
    let size = u64_at(&bytes, offset_of!(abi::Region, size));
    let slots = u32_at(&bytes, offset_of!(abi::Region, slots));
    if (size, slots) != (geometry.size, geometry.slots) {
        return Err(Error::Dimensions {
            path: path.into(),
            found: format!("{slots} slots in {size} bytes"),
            wanted: format!("{} slots in {} bytes", geometry.slots, geometry.size),
        });
    }
    let members = (0..slots as usize)
        .map(|slot| {
            let base = offset_of!(abi::Region, member) + slot * size_of::<abi::Member>();
            let name = base + offset_of!(abi::Member, name);
            Member {
                uuid: Uuid(bytes_at(&bytes, base + offset_of!(abi::Member, uuid))),
                generation: u32_at(&bytes, base + offset_of!(abi::Member, generation)),
                present: false,
                name: printable(&bytes[name..name + abi::NAME_SIZE]),
                cid: None,
            }
        })
        .collect();
    Ok(Header {
        uuid: Uuid(bytes_at(&bytes, offset_of!(abi::Region, uuid))),
        key: bytes_at(&bytes, offset_of!(abi::Region, key)),
        size,
        change: u32_at(&bytes, offset_of!(abi::Region, change)).wrapping_add(1),
        members,
    })
}

/// Lays a header out for the region, in words.
fn render(header: &Header, geometry: Geometry) -> Vec<u64> {
    let mut bytes = vec![0; size_of::<abi::Region>()];
    let mut put = |offset: usize, value: &[u8]| {
        bytes[offset..offset + value.len()].copy_from_slice(value);
    };
    put(
        offset_of!(abi::Region, magic),
        &abi::REGION_MAGIC.to_le_bytes(),
    );
    put(offset_of!(abi::Region, major), &abi::MAJOR.to_le_bytes());
    put(offset_of!(abi::Region, minor), &abi::MINOR.to_le_bytes());
    put(
        offset_of!(abi::Region, header_size),
        &(abi::HEADER_SIZE as u32).to_le_bytes(),
    );
    put(offset_of!(abi::Region, size), &geometry.size.to_le_bytes());
    put(offset_of!(abi::Region, uuid), &header.uuid.0);
    put(offset_of!(abi::Region, key), &header.key);
    put(
        offset_of!(abi::Region, slots),
        &geometry.slots.to_le_bytes(),
    );
    put(
        offset_of!(abi::Region, change),
        &header.change.to_le_bytes(),
    );
    for (slot, member) in header.members.iter().enumerate() {
        let base = offset_of!(abi::Region, member) + slot * size_of::<abi::Member>();
        let state = if member.present {
            abi::MEMBER_PRESENT
        } else {
            abi::MEMBER_ABSENT
        };
        put(base + offset_of!(abi::Member, uuid), &member.uuid.0);
        put(
            base + offset_of!(abi::Member, generation),
            &member.generation.to_le_bytes(),
        );
        put(base + offset_of!(abi::Member, state), &state.to_le_bytes());
        put(
            base + offset_of!(abi::Member, slice_offset),
            &geometry.slice_offset(slot).to_le_bytes(),
        );
        put(
            base + offset_of!(abi::Member, slice_size),
            &geometry.slice_size().to_le_bytes(),
        );
        let name = truncate(&member.name, abi::NAME_SIZE - 1);
        put(base + offset_of!(abi::Member, name), name.as_bytes());
        put(
            base + offset_of!(abi::Member, cid),
            &member.cid.unwrap_or(0).to_le_bytes(),
        );
    }
    bytes.chunks_exact(8).map(|word| u64_at(word, 0)).collect()
}

/// Truncates a text to at most `length` bytes, at the end of a character.
fn truncate(text: &str, length: usize) -> &str {
    let mut end = text.len().min(length);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes[offset..offset + N]
        .try_into()
        .expect("the slice has N bytes")
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, offset))
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, offset))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("hallway-region-{name}-{}", std::process::id()));
            let _ = std::fs::remove_file(&path);
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn geometry() -> Geometry {
        Geometry::new(16 << 20, 4).unwrap()
    }

    #[test]
    fn geometry_is_checked() {
        assert!(matches!(
            Geometry::new(3 << 20, 2),
            Err(Error::NotPowerOfTwo { .. })
        ));
        assert!(matches!(
            Geometry::new(4 << 20, 2),
            Err(Error::TooSmall { .. })
        ));
        assert!(matches!(
            Geometry::new(4096, 2),
            Err(Error::TooSmall { .. })
        ));
        assert!(matches!(
            Geometry::new(1 << 30, 65),
            Err(Error::Slots { slots: 65 })
        ));
        assert!(matches!(
            Geometry::new(1 << 30, 1),
            Err(Error::Slots { slots: 1 })
        ));
        for slots in 2..=64 {
            let g = Geometry::new(1 << 30, slots).unwrap();
            assert_eq!(g.slice_size() % 4096, 0);
            assert!(g.slice_offset(slots as usize) <= g.size());
        }
    }

    #[test]
    fn formats_and_opens_again() {
        let scratch = Scratch::new("again");
        let mut region = Region::open(&scratch.0, geometry(), None).unwrap();
        assert_eq!(std::fs::metadata(&scratch.0).unwrap().mode() & 0o777, 0o600);
        assert_eq!(region.memory().read_u64(0), abi::REGION_MAGIC);
        let vm = Uuid::random().unwrap();
        let slot = region.slot_for(vm).unwrap();
        assert_eq!(slot, 1);
        let generation = region.enter(slot, vm, "web", Some(42));
        region.publish();
        assert_eq!(region.memory().read_u32(128 + 128 + 104), 42);
        let uuid = region.header.uuid;
        drop(region);

        let mut region = Region::open(&scratch.0, geometry(), None).unwrap();
        assert_eq!(region.header.uuid, uuid);
        assert_eq!(region.header.members[1].name, "web");
        assert_eq!(region.memory().read_u32(128 + 128 + 104), 0);
        assert!(!region.header.members[1].present);
        assert_eq!(region.slot_for(vm), Some(1));
        assert!(region.enter(1, vm, "web", None) > generation);
    }

    #[test]
    fn slots_are_found_and_run_out() {
        let scratch = Scratch::new("slots");
        let mut region = Region::open(&scratch.0, geometry(), None).unwrap();
        let vms: Vec<Uuid> = (0..4).map(|_| Uuid::random().unwrap()).collect();
        for (n, vm) in vms[..3].iter().enumerate() {
            let slot = region.slot_for(*vm).unwrap();
            assert_eq!(slot, n + 1);
            region.enter(slot, *vm, "vm", None);
        }
        assert_eq!(region.slot_for(vms[3]), None);
        region.leave(2);
        assert_eq!(region.slot_for(vms[3]), Some(2));
        assert_eq!(region.slot_for(vms[1]), Some(2));
        assert_eq!(region.slot_for(vms[0]), Some(1));
    }

    #[test]
    fn scribbles_are_put_back() {
        let scratch = Scratch::new("guard");
        let mut region = Region::open(&scratch.0, geometry(), None).unwrap();
        assert!(!region.guard());
        for offset in [0, 8, 56, 128, 8312] {
            region.memory().write_u64(offset, 0xdead_beef);
        }
        assert!(region.guard());
        assert!(!region.guard());
        assert_eq!(region.repairs(), 1);
        assert_eq!(region.memory().read_u64(0), abi::REGION_MAGIC);
    }

    #[test]
    fn strangers_are_refused() {
        let scratch = Scratch::new("strange");
        std::fs::write(&scratch.0, vec![1; 1 << 20]).unwrap();
        let open = |g| Region::open(&scratch.0, g, None).err().unwrap();
        std::fs::set_permissions(&scratch.0, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(matches!(
            open(geometry()),
            Error::Permissions { mode: 0o644, .. }
        ));
        std::fs::set_permissions(&scratch.0, PermissionsExt::from_mode(0o600)).unwrap();
        assert!(matches!(open(geometry()), Error::Magic { .. }));

        std::fs::remove_file(&scratch.0).unwrap();
        drop(Region::open(&scratch.0, geometry(), None).unwrap());
        assert!(matches!(
            open(Geometry::new(32 << 20, 4).unwrap()),
            Error::Dimensions { .. }
        ));
        assert!(matches!(
            open(Geometry::new(16 << 20, 2).unwrap()),
            Error::Dimensions { .. }
        ));
        let file = OpenOptions::new().write(true).open(&scratch.0).unwrap();
        file.write_all_at(&9u16.to_le_bytes(), offset_of!(abi::Region, major) as u64)
            .unwrap();
        assert!(matches!(open(geometry()), Error::Version { found: 9, .. }));
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&scratch.0, Some(65534), None).unwrap();
            assert!(matches!(open(geometry()), Error::Owner { uid: 65534, .. }));
        }
    }

    #[test]
    fn one_daemon_at_a_time_and_no_file_in_place_of_one_that_is_gone() {
        let scratch = Scratch::new("busy");
        let region = Region::open(&scratch.0, geometry(), None).unwrap();
        let open = |known| Region::open(&scratch.0, geometry(), known);
        assert!(matches!(open(None), Err(Error::Busy { .. })));
        assert!(!Region::is_abandoned(&scratch.0));
        let known = region.header.clone();
        drop(region);
        assert!(Region::is_abandoned(&scratch.0));
        drop(open(Some(known.clone())).unwrap());
        std::fs::remove_file(&scratch.0).unwrap();
        assert!(matches!(open(Some(known)), Err(Error::Gone { .. })));
        assert!(!scratch.0.exists());
    }

    #[test]
    fn a_file_has_all_its_memory_and_one_that_cannot_have_it_is_not_left_behind() {
        let scratch = Scratch::new("room");
        drop(Region::open(&scratch.0, geometry(), None).unwrap());
        let blocks = |path: &Path| std::fs::metadata(path).unwrap().blocks() * 512;
        assert!(blocks(&scratch.0) >= 16 << 20);
        assert!(!region_lock(&scratch.0).exists());
        // One that an older hallwayd made.
        let file = OpenOptions::new().write(true).open(&scratch.0).unwrap();
        file.set_len(1 << 20).unwrap();
        file.set_len(16 << 20).unwrap();
        drop(Region::open(&scratch.0, geometry(), None).unwrap());
        assert!(blocks(&scratch.0) >= 16 << 20);

        let huge = Geometry::new(1 << 50, 4).unwrap();
        std::fs::remove_file(&scratch.0).unwrap();
        let refused = Region::open(&scratch.0, huge, None).err().unwrap();
        assert!(matches!(refused, Error::NoRoom { .. }), "{refused}");
        assert!(!scratch.0.exists());
        let refused = Region::make("huge", huge).err().unwrap();
        assert!(refused.to_string().contains("available on this host"));
    }

    #[test]
    fn a_truncated_file_is_put_back() {
        let scratch = Scratch::new("truncated");
        let mut region = Region::open(&scratch.0, geometry(), None).unwrap();
        region.enter_host(Uuid::random().unwrap(), "host");
        region.publish();
        assert!(!region.mend().unwrap());
        let file = OpenOptions::new().write(true).open(&scratch.0).unwrap();
        for length in [0, 4096, 1 << 30] {
            file.set_len(length).unwrap();
            assert!(region.mend().unwrap());
            assert_eq!(file.metadata().unwrap().len(), 16 << 20);
            assert!(file.metadata().unwrap().blocks() * 512 >= 16 << 20);
            assert!(!region.guard());
            let slice = region.geometry.slice_offset(HOST_SLOT) as usize;
            assert_eq!(region.memory().read_u64(slice), abi::SLICE_MAGIC);
        }
        // While no daemon serves it.
        let known = region.header.clone();
        drop(region);
        file.set_len(0).unwrap();
        let mut region = Region::open(&scratch.0, geometry(), Some(known)).unwrap();
        assert!(region.mend().unwrap());
        assert_eq!(region.memory().read_u64(0), abi::REGION_MAGIC);
    }

    #[test]
    fn memory_in_no_file_is_taken_up_again() {
        let mut region = Region::make("again", geometry()).unwrap();
        assert!(region.file().is_none() && !region.mend().unwrap());
        region.enter(1, Uuid::random().unwrap(), "web", Some(42));
        let memory = region.descriptor().unwrap().try_clone_to_owned().unwrap();
        assert!(File::from(memory.try_clone().unwrap()).set_len(0).is_err());
        let known = region.header.clone();
        drop(region);
        let again = |geometry, memory: &OwnedFd| {
            Region::take_up(memory.try_clone().unwrap(), geometry, known.clone())
        };
        assert_eq!(again(geometry(), &memory).unwrap().header, known);
        let other = Geometry::new(32 << 20, 4).unwrap();
        assert!(matches!(again(other, &memory), Err(Error::Lost)));
    }

    #[test]
    fn a_lock_on_the_region_itself_keeps_no_daemon_out() {
        use nix::fcntl::{Flock, FlockArg};
        let scratch = Scratch::new("flock");
        drop(Region::open(&scratch.0, geometry(), None).unwrap());
        let file = File::open(&scratch.0).unwrap();
        let _lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap();
        Region::open(&scratch.0, geometry(), None).unwrap();
    }
}
