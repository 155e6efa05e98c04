// SPDX-License-Identifier: Apache-2.0 OR MIT
// Sends back what it gets: node echo.js PORT
'use strict';
const net = require('net');

net.createServer((socket) => socket.pipe(socket)).listen(Number(process.argv[2]));
