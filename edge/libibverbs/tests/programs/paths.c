/* Looks at files that the kernel would show of a software device, by each function of the C library that takes a path. Prints
 * the names of those that do not find them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME "/sys/class/infiniband/soft_lo/node_type"
#define DIRECTORY "/sys/class/infiniband/soft_lo"

/* What programs call that are compiled with _FORTIFY_SOURCE, or against an old C library. */
int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);
ssize_t __readlink_chk(const char *, char *, size_t, size_t);
ssize_t __readlinkat_chk(int, const char *, char *, size_t, size_t);
char *__realpath_chk(const char *, char *, size_t);
int __xstat(int, const char *, struct stat *);
int __xstat64(int, const char *, struct stat64 *);
int __lxstat(int, const char *, struct stat *);
int __lxstat64(int, const char *, struct stat64 *);

static int missed;

static void check(const char *name, int found)
{
	if (!found) {
		puts(name);
		missed = 1;
	}
}

static int opened(int fd)
{
	return fd >= 0 && !close(fd);
}

static int has_stream(FILE *file)
{
	return file && !fclose(file);
}

static int has_directory(DIR *directory)
{
	return directory && !closedir(directory);
}

/* `readlink` has found the file, which is no link. */
static int is_no_link(ssize_t length)
{
	return length < 0 && errno == EINVAL;
}

#define CHECK(name, ...) check(#name, __VA_ARGS__)
#define AT AT_FDCWD

int main(void)
{
	struct stat status;
	struct stat64 status64;
	struct statx extended;
	struct dirent **entries;
	struct dirent64 **entries64;
	char path[PATH_MAX];

	CHECK(open, opened(open(FILE_NAME, O_RDONLY)));
	CHECK(open64, opened(open64(FILE_NAME, O_RDONLY)));
	CHECK(__open_2, opened(__open_2(FILE_NAME, O_RDONLY)));
	CHECK(__open64_2, opened(__open64_2(FILE_NAME, O_RDONLY)));
	CHECK(openat, opened(openat(AT, FILE_NAME, O_RDONLY)));
	CHECK(openat64, opened(openat64(AT, FILE_NAME, O_RDONLY)));
	CHECK(__openat_2, opened(__openat_2(AT, FILE_NAME, O_RDONLY)));
	CHECK(__openat64_2, opened(__openat64_2(AT, FILE_NAME, O_RDONLY)));
	CHECK(fopen, has_stream(fopen(FILE_NAME, "r")));
	CHECK(fopen64, has_stream(fopen64(FILE_NAME, "r")));
	CHECK(freopen, has_stream(freopen(FILE_NAME, "r", fopen("/dev/null", "r"))));
	CHECK(freopen64, has_stream(freopen64(FILE_NAME, "r", fopen("/dev/null", "r"))));
	CHECK(stat, !stat(FILE_NAME, &status));
	CHECK(stat64, !stat64(FILE_NAME, &status64));
	CHECK(lstat, !lstat(FILE_NAME, &status));
	CHECK(lstat64, !lstat64(FILE_NAME, &status64));
#ifdef __x86_64__
	CHECK(__xstat, !__xstat(1, FILE_NAME, &status));
	CHECK(__xstat64, !__xstat64(1, FILE_NAME, &status64));
	CHECK(__lxstat, !__lxstat(1, FILE_NAME, &status));
	CHECK(__lxstat64, !__lxstat64(1, FILE_NAME, &status64));
#endif
	CHECK(fstatat, !fstatat(AT, FILE_NAME, &status, 0));
	CHECK(fstatat64, !fstatat64(AT, FILE_NAME, &status64, 0));
	CHECK(statx, !statx(AT, FILE_NAME, 0, STATX_TYPE, &extended));
	CHECK(access, !access(FILE_NAME, R_OK));
	CHECK(eaccess, !eaccess(FILE_NAME, R_OK));
	CHECK(euidaccess, !euidaccess(FILE_NAME, R_OK));
	CHECK(faccessat, !faccessat(AT, FILE_NAME, R_OK, 0));
	CHECK(readlink, is_no_link(readlink(FILE_NAME, path, sizeof path)));
	CHECK(__readlink_chk, is_no_link(__readlink_chk(FILE_NAME, path, sizeof path, sizeof path)));
	CHECK(readlinkat, is_no_link(readlinkat(AT, FILE_NAME, path, sizeof path)));
	CHECK(__readlinkat_chk, is_no_link(__readlinkat_chk(AT, FILE_NAME, path, sizeof path, sizeof path)));
	CHECK(realpath, realpath(FILE_NAME, path) != NULL);
	CHECK(__realpath_chk, __realpath_chk(FILE_NAME, path, sizeof path) != NULL);
	CHECK(canonicalize_file_name, canonicalize_file_name(FILE_NAME) != NULL);
	CHECK(opendir, has_directory(opendir(DIRECTORY)));
	CHECK(scandir, scandir(DIRECTORY, &entries, NULL, NULL) > 2);
	CHECK(scandir64, scandir64(DIRECTORY, &entries64, NULL, NULL) > 2);
	return missed;
}
