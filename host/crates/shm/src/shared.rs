// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that others write at the same time: mapped, or a file.
//!
//! Access to a mapping faults (SIGBUS) where another user has truncated the file
//! beneath. So only memory with a sealed size is mapped. A file that others can
//! truncate is read and written: beyond its end it reads as zeros. A word that is
//! written to a file may be seen in part by a member that maps it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::Mapping;

/// Memory that others write at the same time.
pub enum Shared {
    /// Its size is sealed.
    Mapped(Mapping),
    /// Others may truncate it.
    File(File),
}

macro_rules! words {
    ($get:ident, $set:ident, $word:ty) => {
        /// Reads one word.
        pub fn $get(&self, offset: usize) -> $word {
            match self {
                Self::Mapped(mapping) => mapping.$get(offset),
                Self::File(file) => <$word>::from_le_bytes(read(file, offset)),
            }
        }

        /// Writes one word.
        pub fn $set(&self, offset: usize, value: $word) {
            match self {
                Self::Mapped(mapping) => mapping.$set(offset, value),
                Self::File(file) => write(file, offset, &value.to_le_bytes()),
            }
        }
    };
}

impl Shared {
    words!(read_u32, write_u32, u32);
    words!(read_u64, write_u64, u64);

    /// Copies `N` bytes out.
    pub fn read_bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        match self {
            Self::Mapped(mapping) => mapping.read_bytes(offset),
            Self::File(file) => read(file, offset),
        }
    }

    /// Copies words out, beginning at `offset`.
    pub fn read_words(&self, offset: usize, words: &mut [u64]) {
        match self {
            Self::Mapped(mapping) => {
                for (n, word) in words.iter_mut().enumerate() {
                    *word = mapping.read_u64(offset + n * 8);
                }
            }
            Self::File(file) => {
                let mut bytes = vec![0; words.len() * 8];
                fill(file, offset, &mut bytes);
                for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                    *word = u64::from_le_bytes(bytes.try_into().expect("a chunk has 8 bytes"));
                }
            }
        }
    }
}

/// Reads what there is; the rest stays as it is.
fn fill(file: &File, offset: usize, bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], (offset + done) as u64) {
            Ok(0) | Err(_) => return,
            Ok(count) => done += count,
        }
    }
}

fn read<const N: usize>(file: &File, offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    fill(file, offset, &mut bytes);
    bytes
}

fn write(file: &File, offset: usize, bytes: &[u8]) {
    // Where it fails, others took the memory. The file's owner looks for that.
    let _ = file.write_all_at(bytes, offset as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_file_reads_as_zeros_and_a_mapping_of_it_is_not_needed() {
        let path = std::env::temp_dir().join(format!("hallway-shared-{}", std::process::id()));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(4096).unwrap();
        let shared = Shared::File(file.try_clone().unwrap());
        shared.write_u64(8, 0x0102_0304_0506_0708);
        assert_eq!(shared.read_u32(8), 0x0506_0708);
        assert_eq!(shared.read_bytes::<2>(8), [8, 7]);
        file.set_len(12).unwrap();
        let mut words = [0; 3];
        shared.read_words(0, &mut words);
        assert_eq!(words, [0, 0x0506_0708, 0]);
        assert_eq!(shared.read_u64(2048), 0);
    }
}
