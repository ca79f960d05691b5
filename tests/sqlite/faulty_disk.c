/* A disk that breaks, as a library to preload: from the FAULT_AT-th write or sync of the database on, each fails with EIO
   (FAULT_MODE=stays), or only that one does (FAULT_MODE=once). After every sync that succeeds, FILE.durable holds the bytes that
   would have survived a power cut. Files whose name holds FAULT_FILE count, their -shm apart. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int calls = 0;

static int is_ours(int fd, char *path) {
    char link[64];
    const char *wanted = getenv("FAULT_FILE");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, 1023);
    if (length <= 0 || wanted == NULL) return 0;
    path[length] = 0;
    return strstr(path, wanted) != NULL && strstr(path, "-shm") == NULL && strstr(path, "-tenure") == NULL &&
           strstr(path, "-reserve") == NULL && strstr(path, ".durable") == NULL;
}

static int fails(void) {
    int at = atoi(getenv("FAULT_AT")), now = ++calls;
    return strcmp(getenv("FAULT_MODE"), "once") == 0 ? now == at : now >= at;
}

static void keep(const char *path) {
    char name[1100], buffer[65536];
    snprintf(name, sizeof name, "%s.durable", path);
    int from = open(path, O_RDONLY), to = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ssize_t got;
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    while ((got = read(from, buffer, sizeof buffer)) > 0)
        if (real(to, buffer, got) != got) abort();
    close(to);
    /* `from` stays open: to close a handle of a file drops the process's locks on it. */
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t offset) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    char path[1024];
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    if (is_ours(fd, path) && fails()) { errno = EIO; return -1; }
    return real(fd, bytes, count, offset);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) { return pwrite64(fd, bytes, count, offset); }

static int sync_with(const char *name, int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    char path[1024];
    if (!is_ours(fd, path)) return real(fd);
    if (fails()) { errno = EIO; return -1; }
    int answer = real(fd);
    if (answer == 0) keep(path);
    return answer;
}

int fsync(int fd) { return sync_with("fsync", fd); }
int fdatasync(int fd) { return sync_with("fdatasync", fd); }

__attribute__((destructor)) static void tell(void) { fprintf(stderr, "calls %d\n", calls); }
