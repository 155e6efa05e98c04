// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gives the library the name by which programs find it at run time.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libhallway.so.0");
    println!("cargo:rerun-if-changed=build.rs");
}
