package mq.harness;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.BufferedOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;

/** Usage: write|read|broker|conditions DIRECTORY SPEC.json. Prints JSON lines; RocketMQ's own output goes to standard error. */
public final class Main {
    static final Gson GSON = new GsonBuilder().disableHtmlEscaping().serializeNulls().create();
    private static final PrintStream OUT = new PrintStream(
        new BufferedOutputStream(new FileOutputStream(FileDescriptor.out), 1 << 16), false, StandardCharsets.UTF_8);

    private Main() { }

    public static void main(String[] args) throws Exception {
        System.setOut(System.err);
        Path directory = Path.of(args[1]);
        Spec spec = GSON.fromJson(Files.readString(Path.of(args[2])), Spec.class);
        int status = 0;
        try {
            switch (args[0]) {
                case "write" -> StoreWriter.run(directory, spec);
                case "read" -> StoreReader.run(directory, spec);
                case "broker" -> LiveBroker.run(directory, spec);
                case "conditions" -> Conditions.run(spec);
                default -> throw new IllegalArgumentException("write, read, broker or conditions, not " + args[0]);
            }
        } catch (Exception | Error e) {
            e.printStackTrace();
            status = 1;
        }
        flush();
        Runtime.getRuntime().halt(status);  // RocketMQ leaves threads behind
    }

    static synchronized void print(Map<String, Object> line) {
        OUT.append(GSON.toJson(line)).append('\n');
    }

    static synchronized void flush() {
        OUT.flush();
    }
}
