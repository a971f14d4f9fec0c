package dev.hookstation.client;

import java.lang.reflect.Array;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.RecordComponent;
import java.lang.reflect.Type;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.DateTimeException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Reads and writes JSON (RFC 8259), because the JDK does not.
 *
 * <p>Objects are {@link Map}, arrays {@link List}, whole numbers {@link Long} or {@link
 * BigInteger}, other numbers {@link BigDecimal}, so that they keep all digits. A record is an
 * object with its components as members.
 */
public final class Json {
    private static final int MAX_DEPTH = 200;

    private Json() {}

    /**
     * Parses JSON.
     *
     * @param text JSON
     * @return maps, lists, strings, numbers, booleans and null
     * @throws IllegalArgumentException if it is not JSON, or nested more than 200 levels deep
     */
    public static Object read(String text) {
        return new Parser(text).document();
    }

    /**
     * Parses JSON into a type: a record, or any type that {@link #read(String)} returns. Members
     * that a record does not have are ignored; components without a member are null or zero.
     *
     * @param <T> the type
     * @param text JSON
     * @param type its class
     * @return the value
     * @throws IllegalArgumentException if the text is not JSON or does not fit the type
     */
    @SuppressWarnings("unchecked") // convert returns the type of the class, boxed if it is primitive
    public static <T> T read(String text, Class<T> type) {
        return (T) convert(read(text), type, "");
    }

    /**
     * Writes a value.
     *
     * @param value a map, list, array, record, string, number, boolean, enum, {@link Instant},
     *     {@link Optional} or null
     * @return JSON on one line
     * @throws IllegalArgumentException if it contains anything else
     */
    public static String write(Object value) {
        StringBuilder out = new StringBuilder();
        write(value, out);
        return out.toString();
    }

    private static void write(Object value, StringBuilder out) {
        if (value == null || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Number number) {
            writeNumber(number, out);
        } else if (value instanceof CharSequence || value instanceof Enum || value instanceof Instant) {
            writeText(value.toString(), out);
        } else if (value instanceof Map<?, ?> map) {
            writeObject(map, out);
        } else if (value instanceof Iterable<?> items) {
            writeArray(items, out);
        } else if (value instanceof Optional<?> optional) {
            write(optional.orElse(null), out);
        } else if (value instanceof Record record) {
            writeObject(members(record), out);
        } else if (value.getClass().isArray()) {
            List<Object> items = new ArrayList<>();
            for (int i = 0; i < Array.getLength(value); i++) {
                items.add(Array.get(value, i));
            }
            writeArray(items, out);
        } else {
            throw new IllegalArgumentException(value.getClass().getName() + " cannot be written as JSON");
        }
    }

    private static void writeNumber(Number number, StringBuilder out) {
        if (!Double.isFinite(number.doubleValue()) && (number instanceof Double || number instanceof Float)) {
            throw new IllegalArgumentException(number + " is not a JSON number");
        }
        out.append(number);
    }

    private static void writeObject(Map<?, ?> map, StringBuilder out) {
        String separator = "{";
        for (Map.Entry<?, ?> member : map.entrySet()) {
            out.append(separator);
            writeText(String.valueOf(member.getKey()), out);
            out.append(':');
            write(member.getValue(), out);
            separator = ",";
        }
        out.append(map.isEmpty() ? "{}" : "}");
    }

    private static void writeArray(Iterable<?> items, StringBuilder out) {
        String separator = "";
        out.append('[');
        for (Object item : items) {
            out.append(separator);
            write(item, out);
            separator = ",";
        }
        out.append(']');
    }

    private static void writeText(String text, StringBuilder out) {
        out.append('"');
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            switch (c) {
                case '"' -> out.append("\\\"");
                case '\\' -> out.append("\\\\");
                case '\n' -> out.append("\\n");
                case '\r' -> out.append("\\r");
                case '\t' -> out.append("\\t");
                default -> {
                    // UTF-8 cannot encode half of a surrogate pair.
                    if (c < 0x20 || (Character.isSurrogate(c) && !isPaired(text, i))) {
                        out.append(String.format("\\u%04x", (int) c));
                    } else {
                        out.append(c);
                    }
                }
            }
        }
        out.append('"');
    }

    private static boolean isPaired(String text, int i) {
        char c = text.charAt(i);
        if (Character.isHighSurrogate(c)) {
            return i + 1 < text.length() && Character.isLowSurrogate(text.charAt(i + 1));
        }
        return i > 0 && Character.isHighSurrogate(text.charAt(i - 1));
    }

    private static Map<String, Object> members(Record record) {
        Map<String, Object> members = new LinkedHashMap<>();
        for (RecordComponent component : record.getClass().getRecordComponents()) {
            try {
                component.getAccessor().setAccessible(true);
                members.put(component.getName(), component.getAccessor().invoke(record));
            } catch (ReflectiveOperationException error) {
                throw new IllegalArgumentException(record.getClass().getName() + " cannot be read", error);
            }
        }
        return members;
    }

    // -- Values as types ---------------------------------------------------------------------------

    private static Object convert(Object value, Type type, String place) {
        if (type instanceof ParameterizedType generic) {
            return convertGeneric(value, generic, place);
        }
        if (!(type instanceof Class<?> wanted)) {
            return value;
        }
        if (value == null) {
            return wanted.isPrimitive() ? Array.get(Array.newInstance(wanted, 1), 0) : null;
        }
        if (wanted.isInstance(value)) {
            return value;
        }
        if (wanted.isRecord() && value instanceof Map<?, ?> map) {
            return newRecord(wanted, map, place);
        }
        if (value instanceof Number number) {
            Object converted = convertNumber(number, wanted, place);
            if (converted != null) {
                return converted;
            }
        }
        if (value instanceof Boolean && wanted == boolean.class) {
            return value;
        }
        if (value instanceof String text) {
            Object converted = convertText(text, wanted, place);
            if (converted != null) {
                return converted;
            }
        }
        throw unfit(value, wanted, place);
    }

    private static Object convertGeneric(Object value, ParameterizedType type, String place) {
        Type[] arguments = type.getActualTypeArguments();
        if (value == null) {
            return type.getRawType() == Optional.class ? Optional.empty() : null;
        }
        if (type.getRawType() == Optional.class) {
            return Optional.of(convert(value, arguments[0], place));
        }
        if (type.getRawType() == List.class && value instanceof List<?> items) {
            List<Object> converted = new ArrayList<>();
            for (Object item : items) {
                converted.add(convert(item, arguments[0], place + "[" + converted.size() + "]"));
            }
            return converted;
        }
        if (type.getRawType() == Map.class && value instanceof Map<?, ?> map) {
            Map<String, Object> converted = new LinkedHashMap<>();
            map.forEach((name, item) ->
                    converted.put((String) name, convert(item, arguments[1], place + "." + name)));
            return converted;
        }
        throw unfit(value, type, place);
    }

    private static Object convertNumber(Number number, Class<?> wanted, String place) {
        BigDecimal exact = new BigDecimal(number.toString());
        try {
            if (wanted == int.class || wanted == Integer.class) {
                return exact.intValueExact();
            }
            if (wanted == long.class || wanted == Long.class) {
                return exact.longValueExact();
            }
        } catch (ArithmeticException error) {
            throw unfit(number, wanted, place);
        }
        if (wanted == double.class || wanted == Double.class) {
            return exact.doubleValue();
        }
        return wanted == BigDecimal.class ? exact : null;
    }

    private static Object convertText(String text, Class<?> wanted, String place) {
        if (wanted == Instant.class) {
            try {
                return Instant.parse(text);
            } catch (DateTimeException error) {
                throw unfit(text, wanted, place);
            }
        }
        if (wanted.isEnum()) {
            for (Object constant : wanted.getEnumConstants()) {
                if (((Enum<?>) constant).name().equals(text)) {
                    return constant;
                }
            }
        }
        return null;
    }

    private static Object newRecord(Class<?> type, Map<?, ?> members, String place) {
        RecordComponent[] components = type.getRecordComponents();
        Object[] values = new Object[components.length];
        for (int i = 0; i < components.length; i++) {
            String name = components[i].getName();
            values[i] = convert(members.get(name), components[i].getGenericType(), place + "." + name);
        }
        Class<?>[] types = Arrays.stream(components).map(RecordComponent::getType).toArray(Class[]::new);
        try {
            var constructor = type.getDeclaredConstructor(types);
            constructor.setAccessible(true);
            return constructor.newInstance(values);
        } catch (InvocationTargetException error) {
            // The record's constructor refused the values.
            throw new IllegalArgumentException(String.valueOf(error.getCause().getMessage()), error.getCause());
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException(type.getName() + " cannot be made", error);
        }
    }

    private static IllegalArgumentException unfit(Object value, Type type, String place) {
        String where = place.isEmpty() ? "" : place.substring(1) + ": ";
        return new IllegalArgumentException(where + write(value) + " is not of type " + type.getTypeName());
    }

    /** Parses one document. */
    private static final class Parser {
        private final String text;
        private int at;
        private int depth;

        Parser(String text) {
            this.text = text;
        }

        Object document() {
            Object value = value();
            skipSpace();
            if (at < text.length()) {
                throw wrong("nothing more");
            }
            return value;
        }

        private Object value() {
            skipSpace();
            if (at == text.length()) {
                throw wrong("a value");
            }
            switch (text.charAt(at)) {
                case '{':
                    return object();
                case '[':
                    return array();
                case '"':
                    return string();
                case 't':
                    return word("true", true);
                case 'f':
                    return word("false", false);
                case 'n':
                    return word("null", null);
                default:
                    return number();
            }
        }

        private Map<String, Object> object() {
            Map<String, Object> members = new LinkedHashMap<>();
            enter();
            if (!isNext('}')) {
                do {
                    skipSpace();
                    String name = string();
                    skipSpace();
                    take(':');
                    members.put(name, value());
                    skipSpace();
                } while (isNext(','));
                take('}');
            }
            depth--;
            return members;
        }

        private List<Object> array() {
            List<Object> items = new ArrayList<>();
            enter();
            if (!isNext(']')) {
                do {
                    items.add(value());
                    skipSpace();
                } while (isNext(','));
                take(']');
            }
            depth--;
            return items;
        }

        private void enter() {
            at++;
            if (++depth > MAX_DEPTH) {
                throw wrong("less depth");
            }
            skipSpace();
        }

        private String string() {
            take('"');
            StringBuilder found = new StringBuilder();
            while (true) {
                if (at == text.length()) {
                    throw wrong("the end of a string");
                }
                char c = text.charAt(at++);
                if (c == '"') {
                    return found.toString();
                }
                if (c < 0x20) {
                    throw wrong("an escaped control character");
                }
                found.append(c == '\\' ? escaped() : c);
            }
        }

        private char escaped() {
            if (at == text.length()) {
                throw wrong("an escape");
            }
            char c = text.charAt(at++);
            switch (c) {
                case '"', '\\', '/':
                    return c;
                case 'b':
                    return '\b';
                case 'f':
                    return '\f';
                case 'n':
                    return '\n';
                case 'r':
                    return '\r';
                case 't':
                    return '\t';
                case 'u':
                    return hexadecimal();
                default:
                    throw wrong("an escape");
            }
        }

        private char hexadecimal() {
            int code = 0;
            for (int i = 0; i < 4; i++, at++) {
                int digit = at < text.length() ? Character.digit(text.charAt(at), 16) : -1;
                if (digit < 0 || text.charAt(at) > 'f') {
                    throw wrong("four hexadecimal digits");
                }
                code = code * 16 + digit;
            }
            return (char) code;
        }

        private Number number() {
            int from = at;
            isNext('-');
            if (!isNext('0')) {
                digits();
            }
            boolean isWhole = true;
            if (isNext('.')) {
                isWhole = false;
                digits();
            }
            if (at < text.length() && (text.charAt(at) | 0x20) == 'e') {
                isWhole = false;
                at++;
                if (!isNext('-')) {
                    isNext('+');
                }
                digits();
            }
            String found = text.substring(from, at);
            if (!isWhole) {
                return decimal(found);
            }
            return found.length() < 19 ? (Number) Long.valueOf(found) : whole(found);
        }

        private BigDecimal decimal(String found) {
            try {
                return new BigDecimal(found);
            } catch (NumberFormatException error) { // an exponent beyond 32 bits
                throw wrong("a smaller number");
            }
        }

        private static Number whole(String found) {
            BigInteger number = new BigInteger(found);
            return number.bitLength() < 64 ? (Number) number.longValue() : number;
        }

        private void digits() {
            int from = at;
            while (at < text.length() && text.charAt(at) >= '0' && text.charAt(at) <= '9') {
                at++;
            }
            if (at == from) {
                throw wrong("a digit");
            }
        }

        private Object word(String word, Object value) {
            if (!text.startsWith(word, at)) {
                throw wrong(word);
            }
            at += word.length();
            return value;
        }

        private boolean isNext(char c) {
            if (at < text.length() && text.charAt(at) == c) {
                at++;
                return true;
            }
            return false;
        }

        private void take(char c) {
            if (!isNext(c)) {
                throw wrong("'" + c + "'");
            }
        }

        private void skipSpace() {
            while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
                at++;
            }
        }

        private IllegalArgumentException wrong(String wanted) {
            return new IllegalArgumentException("JSON: expected " + wanted + " at character " + at);
        }
    }
}
