// SPDX-License-Identifier: Apache-2.0 OR MIT
// Sends random bytes to an echo over several connections, and prints for each
// whether the same came back: node caller.js HOST PORT CONNECTIONS BYTES
'use strict';
const crypto = require('crypto');
const net = require('net');

const [host, port, connections, size] = process.argv.slice(2);

function digest(data) {
  return crypto.createHash('sha256').update(data).digest('hex');
}

for (let n = 0; n < Number(connections); n++) {
  const sent = crypto.randomBytes(Number(size));
  const parts = [];
  const socket = net.connect(Number(port), host, () => socket.end(sent));
  socket.on('data', (part) => parts.push(part));
  socket.on('error', (error) => console.log(String(error)));
  socket.on('end', () => {
    const back = Buffer.concat(parts);
    console.log(digest(back) === digest(sent) ? 'same' : `${back.length} other bytes`);
  });
}
