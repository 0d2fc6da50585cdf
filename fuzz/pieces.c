/*
 * pieces.c: jansson reads one value at a time with JSON_DISABLE_EOF_CHECK and says how many bytes it took.
 */
#include "pieces.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 127
#define FLAGS (JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL)

char pieces_peek(struct pieces *pieces)
{
    while (pieces->at < pieces->size && memchr(" \t\n\r", pieces->text[pieces->at], 4))
        pieces->at++;
    return pieces->at < pieces->size ? pieces->text[pieces->at] : '\0';
}

int pieces_enter(struct pieces *pieces, char bracket)
{
    if (pieces_peek(pieces) != bracket || pieces->depth == DEPTH_MAX)
        return 0;
    pieces->at++;
    pieces->depth++;
    return 1;
}

int pieces_more(struct pieces *pieces, char closing_bracket, int *is_first)
{
    char next = pieces_peek(pieces);
    int was_first = *is_first;
    *is_first = 0;
    if (next == closing_bracket) {
        pieces->at++;
        pieces->depth--;
        return 0;
    }
    if (was_first)
        return 1;
    if (next != ',')
        return -1;
    pieces->at++;
    return 1;
}

json_t *pieces_value(struct pieces *pieces)
{
    json_error_t error;
    if (pieces_peek(pieces) == '\0')
        return NULL;
    const char *start = pieces->text + pieces->at;
    json_t *value = json_loadb(start, pieces->size - pieces->at, FLAGS, &error);
    if (!value) {
        pieces->is_unknown |= json_error_code(&error) == json_error_null_byte_in_key;
        return NULL;
    }
    size_t size = (size_t)error.position;
    pieces->at += size;
    if (pieces->depth + pieces_depth(start, size) > DEPTH_MAX || memchr(start, '\0', size)) {
        json_decref(value);
        return NULL;
    }
    return value;
}

json_t *pieces_string(struct pieces *pieces)
{
    return pieces_peek(pieces) == '"' ? pieces_value(pieces) : NULL;
}

json_t *pieces_key(struct pieces *pieces)
{
    json_t *key = pieces_string(pieces);
    if (key && pieces_peek(pieces) != ':') {
        json_decref(key);
        return NULL;
    }
    pieces->at += key != NULL;
    return key;
}

int pieces_skip(struct pieces *pieces)
{
    json_t *value = pieces_value(pieces);
    json_decref(value);
    return value != NULL;
}

int pieces_finish(struct pieces *pieces)
{
    pieces_peek(pieces);
    return pieces->at == pieces->size;
}

int pieces_are_utf8(const char *text, size_t size)
{
    json_t *string = json_stringn(text, size);
    json_decref(string);
    return string != NULL;
}

int pieces_at_the_edge(const char *text)
{
    for (const char *at = text; *at;) {
        char *end = NULL;
        long double value = *at >= '0' && *at <= '9' ? strtold(at, &end) : 0;
        if (value > 1.79e308L && value < 1.8e308L)
            return 1;
        at = end ? end : at + 1;
    }
    return 0;
}

unsigned pieces_depth(const char *text, size_t size)
{
    unsigned depth = 0, most = 0;
    int in_string = 0;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (c == '"')
            in_string = !in_string;
        else if (in_string)
            i += c == '\\';
        else if (c == '{' || c == '[')
            most = ++depth > most ? depth : most;
        else if (c == '}' || c == ']')
            depth--;
    }
    return most;
}
