// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The functions of `include/hallway.h`, which documents them.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::os::fd::{AsFd, AsRawFd};

use hallway_tunnel::{Error, Receiver, Result, Sender};

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// `struct hallway_connection`. Calls that send and calls that receive borrow different fields,
/// as two threads may make them at once.
pub struct Connection {
    sender: Sender,
    receiver: Receiver,
    fd: c_int,
    peer: CString,
}

/// `struct hallway_listener`.
pub struct Listener {
    listener: hallway_tunnel::Listener,
    address: CString,
}

/// Text without a byte of 0, with one.
fn text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

fn fail<T>(error: &Error, value: T) -> T {
    // At the end of a thread, destructors may call after this text's own.
    let _ = ERROR.try_with(|last| last.replace(text(&error.to_string())));
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = error.errno() };
    value
}

fn code(result: Result<()>) -> c_int {
    result.map_or_else(|error| fail(&error, -1), |()| 0)
}

/// Says where a message begins, and returns its length: 0 if the peer has ended, -1 if that failed.
///
/// # Safety
/// `place` can be written.
unsafe fn give(found: Result<Option<(*const u8, usize)>>, place: *mut *const c_void) -> isize {
    let (start, length) = match found {
        Ok(found) => found.unwrap_or((std::ptr::null(), 0)),
        Err(error) => return fail(&error, -1),
    };
    // SAFETY: as the caller says.
    unsafe { *place = start.cast() };
    length as isize
}

fn pointer<T>(result: Result<T>) -> *mut T {
    result.map_or_else(
        |error| fail(&error, std::ptr::null_mut()),
        |value| Box::into_raw(Box::new(value)),
    )
}

fn connection(connection: hallway_tunnel::Connection) -> Connection {
    let peer = text(connection.peer());
    let fd = connection.as_fd().as_raw_fd();
    let (sender, receiver) = connection.split();
    Connection {
        sender,
        receiver,
        fd,
        peer,
    }
}

/// An address. What is not UTF-8 in it becomes a character that no address has.
///
/// # Safety
/// `address` is a string of C.
unsafe fn address<'a>(address: *const c_char) -> std::borrow::Cow<'a, str> {
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(address) }.to_string_lossy()
}

/// `hallway_connect()`.
///
/// # Safety
/// As `hallway.h` says of it; so for all functions below.
#[no_mangle]
pub unsafe extern "C" fn hallway_connect(to: *const c_char) -> *mut Connection {
    // SAFETY: as the caller says.
    let to = unsafe { address(to) };
    pointer(hallway_tunnel::Connection::connect(&to).map(connection))
}

/// `hallway_send()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_send(
    connection: *mut Connection,
    message: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: no other thread sends now, so nothing else has this field.
    let sender = unsafe { &mut (*connection).sender };
    let message = match length {
        0 => &[],
        // SAFETY: the caller has as many bytes there.
        _ => unsafe { std::slice::from_raw_parts(message.cast(), length) },
    };
    code(sender.send(message))
}

/// `hallway_flush()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_flush(connection: *mut Connection) -> c_int {
    // SAFETY: as in `hallway_send()`.
    code(unsafe { &mut (*connection).sender }.flush())
}

/// `hallway_shutdown()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_shutdown(connection: *mut Connection) -> c_int {
    // SAFETY: as in `hallway_send()`.
    code(unsafe { &mut (*connection).sender }.shutdown())
}

/// `hallway_recv()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_recv(
    connection: *mut Connection,
    message: *mut *const c_void,
) -> isize {
    // SAFETY: no other thread receives now, so nothing else has this field.
    let receiver = unsafe { &mut (*connection).receiver };
    let found = receiver.recv();
    let found = found.map(|found| found.map(|found| (found.as_ptr(), found.len())));
    // SAFETY: the caller has a place for it.
    unsafe { give(found, message) }
}

/// `hallway_reserve()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_reserve(
    connection: *mut Connection,
    length: usize,
) -> *mut c_void {
    // SAFETY: as in `hallway_send()`.
    match unsafe { &mut (*connection).sender }.reserve(length) {
        Ok(mut space) => space.as_mut_ptr().cast(),
        Err(error) => fail(&error, std::ptr::null_mut()),
    }
}

/// `hallway_commit()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_commit(connection: *mut Connection, length: usize) -> c_int {
    // SAFETY: as in `hallway_send()`.
    code(unsafe { &mut (*connection).sender }.commit(length))
}

/// `hallway_peek()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_peek(
    connection: *mut Connection,
    message: *mut *const c_void,
) -> isize {
    // SAFETY: as in `hallway_recv()`.
    let found = unsafe { &mut (*connection).receiver }.peek();
    let found = found.map(|found| found.map(|found| (found.as_ptr(), found.len())));
    // SAFETY: the caller has a place for it.
    unsafe { give(found, message) }
}

/// `hallway_release()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_release(connection: *mut Connection) -> c_int {
    // SAFETY: as in `hallway_recv()`.
    code(unsafe { &mut (*connection).receiver }.release())
}

/// `hallway_is_lent()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_is_lent(connection: *const Connection) -> c_int {
    // SAFETY: nothing changes what it looks at but this look.
    unsafe { &(*connection).sender }.is_lent().into()
}

/// `hallway_fd()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_fd(connection: *const Connection) -> c_int {
    // SAFETY: nothing changes this field.
    unsafe { (*connection).fd }
}

/// `hallway_peer()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_peer(connection: *const Connection) -> *const c_char {
    // SAFETY: nothing changes this field.
    unsafe { &(*connection).peer }.as_ptr()
}

/// `hallway_close()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_close(connection: *mut Connection) {
    if !connection.is_null() {
        // SAFETY: `hallway_connect()` or `hallway_accept()` made it, and nothing uses it later.
        drop(unsafe { Box::from_raw(connection) });
    }
}

/// `hallway_listen()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_listen(at: *const c_char) -> *mut Listener {
    // SAFETY: as the caller says.
    let at = unsafe { address(at) };
    pointer(hallway_tunnel::Listener::bind(&at).map(|listener| {
        let address = text(listener.address());
        Listener { listener, address }
    }))
}

/// `hallway_accept()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_accept(listener: *const Listener) -> *mut Connection {
    // SAFETY: nothing changes a listener.
    pointer(unsafe { &*listener }.listener.accept().map(connection))
}

/// `hallway_listener_fd()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_listener_fd(listener: *const Listener) -> c_int {
    // SAFETY: nothing changes a listener.
    unsafe { &*listener }.listener.as_fd().as_raw_fd()
}

/// `hallway_listener_address()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_listener_address(listener: *const Listener) -> *const c_char {
    // SAFETY: nothing changes a listener.
    unsafe { &*listener }.address.as_ptr()
}

/// `hallway_listener_close()`.
///
/// # Safety
/// As for `hallway_connect()`.
#[no_mangle]
pub unsafe extern "C" fn hallway_listener_close(listener: *mut Listener) {
    if !listener.is_null() {
        // SAFETY: `hallway_listen()` made it, and nothing uses it later.
        drop(unsafe { Box::from_raw(listener) });
    }
}

/// `hallway_error()`.
#[no_mangle]
pub extern "C" fn hallway_error() -> *const c_char {
    ERROR
        .try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}
