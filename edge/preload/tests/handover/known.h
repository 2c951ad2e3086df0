/* For programs that have defined CHECK. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How many sockets the file of statistics knows: it says itself where they lie. */
static int known(void) {
	char path[1024], text[16384];
	long refs, arena, slot, fresh;
	int count = 0, fd;
	uint32_t used, word;
	snprintf(path, sizeof path, "%s/stat.%d", getenv("ADVERB_SOCKETS_SHM_DIR"), getpid());
	if ((fd = open(path, O_RDONLY)) < 0) return 0;
	ssize_t len = pread(fd, text, sizeof text - 1, 0);
	CHECK(len > 0);
	text[len] = 0;
	char *at = strstr(text, "layout=refs:");
	CHECK(at && sscanf(at, "layout=refs:%ld:", &refs) == 1);
	CHECK((at = strstr(at, "| ")) && sscanf(at, "| %ld %ld %ld ", &arena, &slot, &fresh) == 3);
	CHECK(pread(fd, &used, sizeof used, fresh) == sizeof used);
	for (uint32_t i = 0; i < used; i++) {
		CHECK(pread(fd, &word, sizeof word, arena + i * slot + refs) == sizeof word);
		count += word != 0;
	}
	close(fd);
	return count;
}
