package dev.hookstation.client;

import java.util.Collections;
import java.util.List;
import java.util.Map;

/**
 * An object in a response of the API; docs/api.md describes its fields.
 *
 * @param fields the fields by their names, as {@link Json} reads them
 */
public record Resource(Map<String, Object> fields) {
    /**
     * Creates a resource from its fields.
     *
     * @param fields the fields by their names
     */
    public Resource {
        fields = Collections.unmodifiableMap(fields);
    }

    /**
     * A string field.
     *
     * @param name the field's name
     * @return the text, or "" if the field is missing
     */
    public String text(String name) {
        return fields.get(name) instanceof String text ? text : "";
    }

    /**
     * A number field.
     *
     * @param name the field's name
     * @return the number, or 0 if the field is missing
     */
    public long number(String name) {
        return fields.get(name) instanceof Number number ? number.longValue() : 0;
    }

    /**
     * A field that is a list of objects.
     *
     * @param name the field's name
     * @return the objects, or an empty list if the field is missing
     */
    public List<Resource> list(String name) {
        if (!(fields.get(name) instanceof List<?> items)) {
            return List.of();
        }
        return items.stream().filter(Map.class::isInstance).map(Resource::of).toList();
    }

    /**
     * The resource as a record.
     *
     * @param <T> the record
     * @param type its class
     * @return the record
     * @throws IllegalArgumentException if the fields do not fit
     */
    public <T> T as(Class<T> type) {
        return Json.read(Json.write(fields), type);
    }

    @SuppressWarnings("unchecked") // Json creates only objects with string keys
    static Resource of(Object value) {
        if (!(value instanceof Map)) {
            throw new IllegalArgumentException("JSON: expected an object");
        }
        return new Resource((Map<String, Object>) value);
    }
}
