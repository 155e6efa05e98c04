// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tunnels: sockets of AF_VSOCK between two VMs (`abi/hallway/tunnel.h`).

use std::mem::size_of;

pub use crate::constants::tunnel::*;

/// Precedes each message of `SOCK_SEQPACKET`.
#[repr(C)]
pub struct Frame {
    /// Bytes of the message.
    pub length: u32,
    /// [`FRAME_EOR`]; others are not looked at.
    pub flags: u32,
}

const _: () = assert!(size_of::<Frame>() == 8);

/// UUID of the host, as the end of tunnels with a VM. Its CID is [`CID_HOST`].
pub const HOST_UUID: [u8; 16] = *b"hallway-host\xbc\xf8\xbe\x04";

/// The CID of the VM with this UUID.
pub fn cid(uuid: &[u8; 16]) -> u32 {
    let hash = uuid.iter().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    CID_FIRST | hash >> 2
}

/// The CID of the VM with this UUID, to which the configuration gives one. Any number that it
/// cannot give stands for none.
pub fn member_cid(given: u32, uuid: &[u8; 16]) -> u32 {
    match given {
        CID_GIVEN_FIRST..CID_FIRST => given,
        _ => cid(uuid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_its_cid() {
        assert_eq!(cid(&HOST_UUID), CID_HOST);
    }
}
