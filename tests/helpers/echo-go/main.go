// SPDX-License-Identifier: Apache-2.0 OR MIT

// Echo-go sends back each byte over AF_VSOCK, or has a peer do so and compares:
//
//	echo-go serve PORT
//	echo-go call CID PORT BYTES
//
// `serve-grpc` and `call-grpc` do the same with messages of gRPC. The sockets are those of
// github.com/mdlayher/vsock. They do not block: Go's runtime polls them.
package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"os"
	"strconv"

	"github.com/mdlayher/vsock"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("echo-go: ")
	if len(os.Args) < 2 {
		usage()
	}
	serves := map[string]func(port uint32) error{"serve": serve, "serve-grpc": serveGRPC}
	calls := map[string]func(cid, port, size uint32) error{"call": call, "call-grpc": callGRPC}
	command, numbers := os.Args[1], parse(os.Args[2:])
	var err error
	if run, ok := serves[command]; ok && len(numbers) == 1 {
		err = run(numbers[0])
	} else if run, ok := calls[command]; ok && len(numbers) == 3 {
		if err = run(numbers[0], numbers[1], numbers[2]); err == nil {
			fmt.Println("same")
		}
	} else {
		usage()
	}
	if err != nil {
		log.Fatal(err)
	}
}

func usage() {
	log.Fatal("usage: echo-go serve[-grpc] PORT | echo-go call[-grpc] CID PORT BYTES")
}

func parse(words []string) []uint32 {
	var numbers []uint32
	for _, word := range words {
		number, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			log.Fatal(err)
		}
		numbers = append(numbers, uint32(number))
	}
	return numbers
}

// listen does not use vsock.Listen(), which binds to the VM's own CID: see docs/tunnels.md.
func listen(port uint32) (net.Listener, error) {
	return vsock.ListenContextID(math.MaxUint32, port, nil) // VMADDR_CID_ANY
}

func serve(port uint32) error {
	listener, err := listen(port)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		if _, err := io.Copy(conn, conn); err != nil {
			return err
		}
		if err := conn.Close(); err != nil {
			return err
		}
	}
}

func call(cid, port, size uint32) error {
	conn, err := vsock.Dial(cid, port, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	sent, err := random(size)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		if err == nil {
			err = conn.CloseWrite()
		}
		failed <- err
	}()
	received, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	if err := <-failed; err != nil {
		return err
	}
	return compare(sent, received)
}

func random(size uint32) ([]byte, error) {
	data := make([]byte, size)
	_, err := rand.Read(data)
	return data, err
}

func compare(sent, received []byte) error {
	if !bytes.Equal(sent, received) {
		return fmt.Errorf("sent %d bytes, received %d others", len(sent), len(received))
	}
	return nil
}
