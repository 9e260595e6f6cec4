/* log.h - one line, one event, on stderr
 *
 * A line is: time, level letter, module, message with key=value pairs. The level is the only
 * global mutable state of the program. Safe from any thread; a line is written in one call.
 */
#ifndef FATHOM_BASE_LOG_H
#define FATHOM_BASE_LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* log_set_level - lines above this level are dropped; LOG_LEVEL_INFO at start */
void log_set_level(enum log_level level);
enum log_level log_get_level(void);

/* log_write - one line at `level` from `module`; dropped when the level is off */
void log_write(enum log_level level, const char *module, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define LOG_ERROR(module, ...) log_write(LOG_LEVEL_ERROR, module, __VA_ARGS__)
#define LOG_WARN(module, ...) log_write(LOG_LEVEL_WARN, module, __VA_ARGS__)
#define LOG_INFO(module, ...) log_write(LOG_LEVEL_INFO, module, __VA_ARGS__)
#define LOG_DEBUG(module, ...) log_write(LOG_LEVEL_DEBUG, module, __VA_ARGS__)

#endif
