/*
 * progress.c: formats and draws the progress line with nothing but carriage returns and blanks, which every terminal
 * understands.
 */
#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "output.h"

enum { LINE_MAX_BYTES = 256, BAR_COLUMNS_MAX = 40, BAR_COLUMNS_MIN = 8 };

static void format_time(char out[32], uint64_t seconds)
{
    if (seconds >= 3600)
        snprintf(out, 32, "%llu:%02u:%02u", (unsigned long long)(seconds / 3600), (unsigned)(seconds / 60 % 60),
                 (unsigned)(seconds % 60));
    else
        snprintf(out, 32, "%u:%02u", (unsigned)(seconds / 60), (unsigned)(seconds % 60));
}

static double seconds_left(const struct hr_progress *state)
{
    double rate = (double)state->bytes_done / (double)(state->elapsed_ns ? state->elapsed_ns : 1);
    return (double)(state->bytes_total - state->bytes_done) / rate / 1e9;
}

/* " 12.30 GB/s, 0:04 left"; the time is left out while nothing is known of the speed. */
static void format_speed(char out[80], const struct hr_progress *state)
{
    char time[32];
    int used = snprintf(out, 80, " %.2f GB/s", gigabytes_per_second(state->bytes_done, state->elapsed_ns));
    double left = state->bytes_done ? seconds_left(state) : 1e9;
    if (left < 1e6) {
        format_time(time, (uint64_t)(left + 0.5));
        snprintf(out + used, 80 - (size_t)used, ", %s left", time);
    }
}

size_t progress_format(char *out, size_t capacity, size_t columns, const struct hr_progress *state)
{
    char percent[8], speed[80], bar[BAR_COLUMNS_MAX + 1] = "";
    double done = state->bytes_total ? (double)state->bytes_done / (double)state->bytes_total : 1.0;
    if (columns > capacity - 1)
        columns = capacity - 1;
    snprintf(percent, sizeof percent, "%3d%%", (int)(done * 100));
    format_speed(speed, state);
    size_t used = strlen(percent) + strlen(speed);
    size_t room = columns > used + 3 ? columns - used - 3 : 0; /* " [" and "]" */
    if (room > BAR_COLUMNS_MAX)
        room = BAR_COLUMNS_MAX;
    if (room >= BAR_COLUMNS_MIN) {
        size_t filled = (size_t)(done * (double)room);
        memset(bar, '#', filled);
        memset(bar + filled, ' ', room - filled);
        return (size_t)snprintf(out, capacity, "%s [%s]%s", percent, bar, speed);
    }
    snprintf(out, columns + 1, "%s%s", percent, used <= columns ? speed : "");
    return strlen(out);
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void progress_init(struct progress *progress)
{
    *progress = (struct progress){.is_enabled = isatty(STDERR_FILENO), .start_ns = now_ns()};
    pthread_mutex_init(&progress->lock, NULL);
}

static size_t terminal_columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return 80;
    return size.ws_col;
}

/* One write, so that lines of other writers do not stand in its middle. Blanks cover what was drawn before. */
static void draw_line(struct progress *progress, const char *line, size_t columns)
{
    char out[2 * LINE_MAX_BYTES];
    size_t blanks = progress->drawn_columns > columns ? progress->drawn_columns - columns : 0;
    int size = snprintf(out, sizeof out, "\r%s%*s%s", line, (int)blanks, "", columns ? "" : "\r");
    if (write(STDERR_FILENO, out, (size_t)size) >= 0)
        progress->drawn_columns = columns;
}

int progress_draw(void *context, const struct hr_progress *state)
{
    struct progress *progress = context;
    char line[LINE_MAX_BYTES];
    if (!progress->is_enabled)
        return 0;
    size_t columns = progress_format(line, sizeof line, terminal_columns() - 1, state); /* the last would wrap */
    pthread_mutex_lock(&progress->lock);
    draw_line(progress, line, columns);
    pthread_mutex_unlock(&progress->lock);
    return 0;
}

uint64_t progress_elapsed(const struct progress *progress)
{
    return now_ns() - progress->start_ns;
}

int progress_is_due(struct progress *progress, uint64_t *ret_elapsed_ns)
{
    static const uint64_t interval_ns = 100000000;
    if (!progress->is_enabled)
        return 0;
    uint64_t elapsed_ns = progress_elapsed(progress);
    pthread_mutex_lock(&progress->lock);
    int is_due = elapsed_ns >= progress->drawn_ns + interval_ns;
    if (is_due)
        progress->drawn_ns = *ret_elapsed_ns = elapsed_ns;
    pthread_mutex_unlock(&progress->lock);
    return is_due;
}

void progress_erase(struct progress *progress)
{
    pthread_mutex_lock(&progress->lock);
    if (progress->drawn_columns)
        draw_line(progress, "", 0);
    pthread_mutex_unlock(&progress->lock);
}
