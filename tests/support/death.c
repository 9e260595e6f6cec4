/* death.c - a function that must end the process, run in a child */
#include "support/death.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

int run_child(void (*f)(void *arg), void *arg, char *said, size_t bytes)
{
    int pipe_fd[2];
    int status;
    size_t n = 0;
    ssize_t got;
    assert_int_equal(pipe(pipe_fd), 0);
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)dup2(pipe_fd[1], STDERR_FILENO);
        f(arg);
        _exit(99);
    }
    (void)close(pipe_fd[1]);
    while (n < bytes - 1 && (got = read(pipe_fd[0], said + n, bytes - 1 - n)) > 0) n += (size_t)got;
    said[n] = '\0';
    (void)close(pipe_fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

bool dies_of_assert(void (*f)(void *arg), void *arg, char *said, size_t bytes)
{
    int status = run_child(f, arg, said, bytes);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}
