// SPDX-License-Identifier: Apache-2.0 OR MIT
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

/** Sends back what it gets, by one selector and sockets that never block. */
final class Echo {
    private final Selector selector = Selector.open();
    private final ServerSocketChannel listener = ServerSocketChannel.open();

    private Echo(int port) throws IOException {
        listener.bind(new InetSocketAddress(port));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
    }

    public static void main(String[] words) throws IOException {
        new Echo(Integer.parseInt(words[0])).serve();
    }

    private void serve() throws IOException {
        for (;;) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    accept();
                } else {
                    pass(key);
                }
            }
            selector.selectedKeys().clear();
        }
    }

    private void accept() throws IOException {
        SocketChannel channel = listener.accept();
        channel.configureBlocking(false);
        channel.register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(64 << 10));
    }

    /** Reads what fits; writes what is there; waits for what is left to do. */
    private static void pass(SelectionKey key) throws IOException {
        SocketChannel channel = (SocketChannel) key.channel();
        ByteBuffer buffer = (ByteBuffer) key.attachment();
        if (key.isReadable() && channel.read(buffer) < 0) {
            channel.close();
            return;
        }
        buffer.flip();
        channel.write(buffer);
        buffer.compact();
        int read = buffer.hasRemaining() ? SelectionKey.OP_READ : 0;
        key.interestOps(read | (buffer.position() > 0 ? SelectionKey.OP_WRITE : 0));
    }
}
