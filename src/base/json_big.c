#include "base/json_big.h"

#define BIG_KEY "\xff"

const char *json_big_digits(const json_t *value)
{
    if (!json_is_object(value) || json_object_size(value) != 1) return NULL;
    return json_string_value(json_object_get(value, BIG_KEY));
}

json_t *json_big_create(const char *digits)
{
    json_t *v = json_object();
    if (v && json_object_set_new_nocheck(v, BIG_KEY, json_string_nocheck(digits)) != 0) {
        json_decref(v);
        return NULL;
    }
    return v;
}
