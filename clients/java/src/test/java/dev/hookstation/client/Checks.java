package dev.hookstation.client;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.Arrays;
import java.util.Comparator;
import java.util.Objects;

/** Runs tests without a library: every method without parameters whose name begins with "test". */
final class Checks {
    private Checks() {}

    /** A function that may throw any exception. */
    interface Action {
        void run() throws Exception;
    }

    /** Runs the tests of a class, prints a line for each, and ends the process with 1 if one failed. */
    static void runAll(Class<?> tests) {
        Method[] methods = Arrays.stream(tests.getDeclaredMethods())
                .filter(method -> method.getName().startsWith("test"))
                .filter(method -> method.getParameterCount() == 0)
                .filter(method -> Modifier.isStatic(method.getModifiers()))
                .sorted(Comparator.comparing(Method::getName))
                .toArray(Method[]::new);
        int failed = 0;
        for (Method method : methods) {
            try {
                method.invoke(null);
                System.out.println("PASS " + method.getName());
            } catch (InvocationTargetException error) {
                failed++;
                System.out.println("FAIL " + method.getName());
                error.getCause().printStackTrace(System.out);
            } catch (IllegalAccessException error) {
                throw new AssertionError(error);
            }
        }
        System.exit(failed == 0 ? 0 : 1);
    }

    static void equal(Object wanted, Object found) {
        if (!Objects.equals(wanted, found)) {
            throw new AssertionError(found + " in place of " + wanted);
        }
    }

    static void isTrue(boolean condition, Object found) {
        if (!condition) {
            throw new AssertionError(String.valueOf(found));
        }
    }

    static <T extends Throwable> T thrown(Class<T> type, Action action) {
        try {
            action.run();
        } catch (Throwable error) {
            if (type.isInstance(error)) {
                return type.cast(error);
            }
            throw new AssertionError("another exception", error);
        }
        throw new AssertionError("no " + type.getSimpleName());
    }
}
