// SPDX-License-Identifier: Apache-2.0 OR MIT

// Rawstream sends random bytes both ways over one TCP connection and compares
// SHA-256 sums. Built without cgo it is static and makes its own system calls:
// nothing that preloads a library could get between it and the kernel.
//
// The clock runs while bytes move: buffers are filled before, and sums are
// made after. A direction ends when its receiver's one byte of answer is here.
package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand"
	"net"
	"os"
	"syscall"
	"time"
)

const (
	chunk = 64 << 10
	limit = 1 << 30
)

type ends struct {
	Sent     string `json:"sent_sha256"`
	Received string `json:"received_sha256"`
}

type report struct {
	Bytes int     `json:"bytes_each_way"`
	Rate  float64 `json:"megabytes_per_second"`
	// the parts of the clock's time in which the client's CPU ran it, and the kernel for it
	User   float64 `json:"user"`
	System float64 `json:"system"`
	Up     ends    `json:"up"`
	Down   ends    `json:"down"`
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("rawstream: ")
	listen := flag.String("listen", "", "serve at this address")
	connect := flag.String("connect", "", "connect to this address")
	size := flag.Int("bytes", 64<<20, "how many bytes to send each way")
	flag.Parse()
	var err error
	switch {
	case *listen != "":
		err = serve(*listen)
	case *connect != "" && *size > 0 && *size <= limit:
		err = call(*connect, *size)
	default:
		flag.Usage()
		os.Exit(2)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		// one at a time: two would share the guest's only CPU
		if err := answer(conn); err != nil {
			log.Print(err)
		}
		conn.Close()
	}
}

// answer is the server's half of call.
func answer(conn net.Conn) error {
	var head [8]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint64(head[:])
	if size == 0 || size > limit {
		return fmt.Errorf("a client asks for %d bytes", size)
	}
	data := noise(int(size))
	sent := sha256.Sum256(data)
	if err := ready(conn); err != nil {
		return err
	}
	// what comes in overwrites what goes out, so out it goes first
	if err := send(conn, data); err != nil {
		return err
	}
	if err := receive(conn, data); err != nil {
		return err
	}
	received := sha256.Sum256(data)
	_, err := conn.Write(append(sent[:], received[:]...))
	return err
}

func call(address string, size int) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	var head [8]byte
	binary.BigEndian.PutUint64(head[:], uint64(size))
	if _, err := conn.Write(head[:]); err != nil {
		return err
	}
	out, in := noise(size), make([]byte, size)
	for i := 0; i < size; i += 4096 {
		in[i] = 1 // the pages are there before the clock starts
	}
	if err := await(conn); err != nil {
		return err
	}
	user, system := cpu()
	begin := time.Now()
	if err := receive(conn, in); err != nil {
		return err
	}
	if err := send(conn, out); err != nil {
		return err
	}
	took := time.Since(begin)
	user2, system2 := cpu()

	var sums [2 * sha256.Size]byte
	if _, err := io.ReadFull(conn, sums[:]); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(report{
		Bytes:  size,
		Rate:   2 * float64(size) / 1e6 / took.Seconds(),
		User:   (user2 - user).Seconds() / took.Seconds(),
		System: (system2 - system).Seconds() / took.Seconds(),
		Up:     ends{sum(out), hex.EncodeToString(sums[sha256.Size:])},
		Down:   ends{hex.EncodeToString(sums[:sha256.Size]), sum(in)},
	})
}

// cpu returns for how long this process has run, itself and in the kernel.
func cpu() (user, system time.Duration) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano()), time.Duration(usage.Stime.Nano())
}

// send writes data and waits for the receiver's word that it has all.
func send(conn net.Conn, data []byte) error {
	for len(data) > 0 {
		n := len(data)
		if n > chunk {
			n = chunk
		}
		if _, err := conn.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return await(conn)
}

// receive fills data and says so.
func receive(conn net.Conn, data []byte) error {
	if _, err := io.ReadFull(conn, data); err != nil {
		return err
	}
	return ready(conn)
}

func ready(conn net.Conn) error {
	_, err := conn.Write([]byte{1})
	return err
}

func await(conn net.Conn) error {
	var word [1]byte
	_, err := io.ReadFull(conn, word[:])
	return err
}

func noise(size int) []byte {
	data := make([]byte, size)
	rand.New(rand.NewSource(time.Now().UnixNano())).Read(data)
	return data
}

func sum(data []byte) string {
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:])
}
