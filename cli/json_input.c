/*
 * json_input.c: no tree and no allocation; nesting that is skipped is bounded.
 */
#include "json_input.h"

#include <string.h>

enum { DEPTH_MAX = 32 };

static void skip_blanks(struct json_input *input)
{
    while (input->at < input->size && strchr(" \t\r\n", input->text[input->at]) && input->text[input->at])
        input->at++;
}

static int peek(struct json_input *input)
{
    skip_blanks(input);
    return input->at < input->size ? (unsigned char)input->text[input->at] : -1;
}

int json_take(struct json_input *input, char character)
{
    if (peek(input) != (unsigned char)character)
        return 0;
    input->at++;
    return 1;
}

int json_take_end(struct json_input *input, char bracket, int *ret_more)
{
    *ret_more = json_take(input, ',');
    return *ret_more || json_take(input, bracket);
}

static int take_word(struct json_input *input, const char *word)
{
    size_t size = strlen(word);
    skip_blanks(input);
    if (input->size - input->at < size || memcmp(input->text + input->at, word, size) != 0)
        return 0;
    input->at += size;
    return 1;
}

int json_take_u64(struct json_input *input, uint64_t *ret_value)
{
    int character = peek(input);
    if (character < '0' || character > '9')
        return 0;
    *ret_value = 0;
    for (; input->at < input->size; input->at++) {
        character = (unsigned char)input->text[input->at];
        if (character < '0' || character > '9')
            break;
        if (__builtin_mul_overflow(*ret_value, 10u, ret_value) ||
            __builtin_add_overflow(*ret_value, (unsigned)(character - '0'), ret_value))
            return 0;
    }
    return 1;
}

/* Behind \u: only what the command writes so, which is below 0x80. */
static int take_code(struct json_input *input, char *ret_character)
{
    unsigned code = 0;
    for (int i = 0; i < 4; i++, input->at++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = input->at < input->size ? strchr(digits, input->text[input->at] | 0x20) : NULL;
        if (!digit || !*digit)
            return 0;
        code = code * 16 + (unsigned)(digit - digits);
    }
    *ret_character = (char)code;
    return code > 0 && code < 0x80;
}

static int take_character(struct json_input *input, char *ret_character)
{
    *ret_character = input->text[input->at++];
    if (*ret_character != '\\')
        return (unsigned char)*ret_character >= 0x20;
    char escaped = input->at < input->size ? input->text[input->at++] : '\0';
    *ret_character = escaped;
    return escaped == 'u' ? take_code(input, ret_character) : escaped && strchr("\"\\/", escaped) != NULL;
}

/* `ret_text` may be NULL: then any length is taken. */
static int take_string(struct json_input *input, char *ret_text, size_t capacity)
{
    size_t size = 0;
    if (!json_take(input, '"'))
        return 0;
    while (input->at < input->size && input->text[input->at] != '"') {
        char character;
        if (!take_character(input, &character) || (ret_text && size + 1 >= capacity))
            return 0;
        if (ret_text)
            ret_text[size++] = character;
    }
    if (ret_text)
        ret_text[size] = '\0';
    return json_take(input, '"');
}

int json_take_text(struct json_input *input, char *ret_text, size_t capacity)
{
    if (!take_word(input, "null"))
        return take_string(input, ret_text, capacity);
    *ret_text = '\0';
    return 1;
}

static int skip_number(struct json_input *input)
{
    size_t begin = input->at;
    while (input->at < input->size && input->text[input->at] && strchr("+-.0123456789eE", input->text[input->at]))
        input->at++;
    return input->at > begin;
}

static int skip_value(struct json_input *input, int depth)
{
    int first = peek(input), more = 1;
    if (first == '"')
        return take_string(input, NULL, 0);
    if (first != '{' && first != '[')
        return take_word(input, "null") || take_word(input, "true") || take_word(input, "false") || skip_number(input);
    char bracket = first == '{' ? '}' : ']';
    if (depth == DEPTH_MAX)
        return 0;
    input->at++;
    if (json_take(input, bracket))
        return 1;
    while (more) {
        if (first == '{' && (!take_string(input, NULL, 0) || !json_take(input, ':')))
            return 0;
        if (!skip_value(input, depth + 1) || !json_take_end(input, bracket, &more))
            return 0;
    }
    return 1;
}

int json_skip(struct json_input *input)
{
    return skip_value(input, 0);
}
