// SPDX-License-Identifier: Apache-2.0 OR MIT
import java.io.InputStream;
import java.io.OutputStream;
import java.net.Socket;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Random;

/**
 * Sends random bytes to an echo over several connections, each with a thread
 * that writes and one that reads, and prints whether the same came back.
 */
final class Caller {
    public static void main(String[] words) throws Exception {
        int connections = Integer.parseInt(words[2]);
        int size = Integer.parseInt(words[3]);
        Thread[] readers = new Thread[connections];
        for (int n = 0; n < connections; n++) {
            Socket socket = new Socket(words[0], Integer.parseInt(words[1]));
            byte[] data = new byte[size];
            new Random().nextBytes(data);
            new Thread(() -> write(socket, data)).start();
            readers[n] = new Thread(() -> System.out.println(read(socket, data)));
            readers[n].start();
        }
        for (Thread reader : readers) {
            reader.join();
        }
    }

    private static void write(Socket socket, byte[] data) {
        try {
            OutputStream out = socket.getOutputStream();
            for (int at = 0; at < data.length; at += 8000) {
                out.write(data, at, Math.min(8000, data.length - at));
            }
        } catch (Exception failure) {
            failure.printStackTrace();
        }
    }

    private static String read(Socket socket, byte[] data) {
        try (socket) {
            InputStream in = socket.getInputStream();
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            byte[] buffer = new byte[10000];
            for (int left = data.length; left > 0;) {
                int got = in.read(buffer, 0, Math.min(buffer.length, left));
                if (got < 0) {
                    return "ended with " + left + " bytes missing";
                }
                digest.update(buffer, 0, got);
                left -= got;
            }
            byte[] sent = MessageDigest.getInstance("SHA-256").digest(data);
            return Arrays.equals(sent, digest.digest()) ? "same" : "different";
        } catch (Exception failure) {
            return failure.toString();
        }
    }
}
