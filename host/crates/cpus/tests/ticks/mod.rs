// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a process has had of CPUs.

/// Ticks of a CPU that a process has had.
pub fn count(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The name before may have spaces. After it, times in user and kernel mode come 12th.
    let fields = stat.rsplit(')').next().unwrap().split_whitespace();
    let times = fields.skip(11).take(2);
    times.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}
