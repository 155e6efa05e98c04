// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"

	"github.com/mdlayher/vsock"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
)

const (
	service = "hallway.Echo"
	message = 20000 // bytes of one in a stream
)

// plain is a codec for messages that are bytes.
type plain struct{}

func (plain) Name() string { return "plain" }

func (plain) Marshal(message interface{}) ([]byte, error) { return *message.(*[]byte), nil }

func (plain) Unmarshal(data []byte, message interface{}) error {
	*message.(*[]byte) = append([]byte(nil), data...)
	return nil
}

var stream = grpc.StreamDesc{
	StreamName:    "Stream",
	Handler:       sendBackStream,
	ServerStreams: true,
	ClientStreams: true,
}

func init() { encoding.RegisterCodec(plain{}) }

func serveGRPC(port uint32) error {
	listener, err := listen(port)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*interface{})(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "One", Handler: sendBackOne}},
		Streams:     []grpc.StreamDesc{stream},
	}, struct{}{})
	return server.Serve(listener)
}

func sendBackOne(
	_ interface{}, _ context.Context, receive func(interface{}) error, _ grpc.UnaryServerInterceptor,
) (interface{}, error) {
	var data []byte
	err := receive(&data)
	return &data, err
}

func sendBackStream(_ interface{}, stream grpc.ServerStream) error {
	for {
		var data []byte
		if err := stream.RecvMsg(&data); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.SendMsg(&data); err != nil {
			return err
		}
	}
}

// callGRPC sends bytes in one message, and then the same bytes in a stream of messages.
func callGRPC(cid, port, size uint32) error {
	dial := func(context.Context, string) (net.Conn, error) { return vsock.Dial(cid, port, nil) }
	conn, err := grpc.Dial("passthrough:///vsock", grpc.WithInsecure(), grpc.WithContextDialer(dial),
		grpc.WithDefaultCallOptions(grpc.CallContentSubtype(plain{}.Name())))
	if err != nil {
		return err
	}
	defer conn.Close()
	sent, err := random(size)
	if err != nil {
		return err
	}
	ctx := context.Background()
	var answer []byte
	if err := conn.Invoke(ctx, "/"+service+"/One", &sent, &answer); err != nil {
		return err
	}
	if err := compare(sent, answer); err != nil {
		return fmt.Errorf("one message: %w", err)
	}
	calls, err := conn.NewStream(ctx, &stream, "/"+service+"/Stream")
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- sendStream(calls, sent) }()
	var answers []byte
	for {
		var data []byte
		if err := calls.RecvMsg(&data); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		answers = append(answers, data...)
	}
	if err := <-failed; err != nil {
		return err
	}
	if err := compare(sent, answers); err != nil {
		return fmt.Errorf("a stream of messages: %w", err)
	}
	return nil
}

func sendStream(calls grpc.ClientStream, data []byte) error {
	for left := bytes.NewBuffer(data); left.Len() > 0; {
		part := left.Next(message)
		if err := calls.SendMsg(&part); err != nil {
			return err
		}
	}
	return calls.CloseSend()
}
