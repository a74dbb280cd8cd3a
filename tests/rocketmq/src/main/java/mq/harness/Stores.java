package mq.harness;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import java.util.stream.Stream;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** Opens a directory with RocketMQ's DefaultMessageStore, with the sizes of its existing files. */
final class Stores {
    private Stores() { }

    static MessageStoreConfig config(Path directory, Spec spec) {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory.toString());
        config.setStorePathCommitLog(directory.resolve("commitlog").toString());
        config.setHaListenPort(0);
        config.setCleanFileForciblyEnable(false);
        config.setDiskMaxUsedSpaceRatio(99);
        long segment = firstFileSize(directory.resolve("commitlog"), 1);
        long queueFile = firstFileSize(directory.resolve("consumequeue"), 3);
        Properties properties = new Properties();
        if (segment > 0) {
            properties.put("mappedFileSizeCommitLog", "" + segment);
        }
        if (queueFile > 0) {
            properties.put("mappedFileSizeConsumeQueue", "" + queueFile);
        }
        properties.putAll(spec.config);
        for (String name : properties.stringPropertyNames()) {  // the spelling of RocketMQ 4.3 to 4.6
            properties.put(name.replace("mapped", "maped"), properties.get(name));
        }
        MixAll.properties2Object(properties, config);
        return config;
    }

    static DefaultMessageStore open(Path directory, Spec spec) throws Exception {
        DefaultMessageStore store = Line.store(config(directory, spec), spec.batchTopics);
        if (!store.load()) {
            throw new IOException("RocketMQ does not load " + directory);
        }
        store.start();
        awaitDispatch(store);
        return store;
    }

    /** Waits until every record has its queue entry; the dispatching thread sleeps a millisecond between rounds. */
    static void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (store.dispatchBehindBytes() > 0) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("dispatch is still " + store.dispatchBehindBytes() + " bytes behind");
            }
            Thread.sleep(1);
        }
    }

    static List<Path> children(Path directory) {
        if (!Files.isDirectory(directory)) {
            return List.of();
        }
        try (Stream<Path> paths = Files.list(directory)) {
            return paths.sorted().toList();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private static long firstFileSize(Path directory, int depth) {
        if (!Files.isDirectory(directory)) {
            return 0;
        }
        try (Stream<Path> paths = Files.walk(directory, depth)) {
            return paths.filter(p -> Files.isRegularFile(p) && p.getFileName().toString().matches("\\d{20}"))
                .sorted().mapToLong(p -> p.toFile().length()).findFirst().orElse(0);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
