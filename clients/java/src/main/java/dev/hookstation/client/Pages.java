package dev.hookstation.client;

import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.function.Function;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/** A list of the API. Each iteration reads it from the start, page by page. */
public final class Pages implements Iterable<Resource> {
    private final Function<String, Resource> readPage;

    /** {@code readPage} takes the cursor of a page, null for the first. */
    Pages(Function<String, Resource> readPage) {
        this.readPage = readPage;
    }

    /**
     * The items, which are read when they are needed.
     *
     * @return a stream
     */
    public Stream<Resource> stream() {
        return StreamSupport.stream(spliterator(), false);
    }

    @Override
    public Iterator<Resource> iterator() {
        return new Iterator<>() {
            private Iterator<Resource> page = List.<Resource>of().iterator();
            private String cursor;
            private boolean isLast;

            @Override
            public boolean hasNext() {
                while (!page.hasNext() && !isLast) {
                    Resource found = readPage.apply(cursor);
                    page = found.list("items").iterator();
                    cursor = found.text("next");
                    isLast = cursor.isEmpty();
                }
                return page.hasNext();
            }

            @Override
            public Resource next() {
                if (!hasNext()) {
                    throw new NoSuchElementException();
                }
                return page.next();
            }
        };
    }
}
