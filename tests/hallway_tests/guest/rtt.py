# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Plays ping-pong with `fault.py hear`: rtt.py PORT HOST COUNT.

It prints the time of all round trips, and what a tenth of them do not exceed, in microseconds.
"""

import socket
import statistics
import sys
import time

port, host, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
connection = socket.create_connection((host, port))
times = []
for _ in range(count):
    began = time.perf_counter()
    connection.sendall(b"p")
    connection.recv(1)
    times.append(time.perf_counter() - began)
print(round(sum(times) * 1e6), round(statistics.quantiles(times, n=10)[0] * 1e6))
