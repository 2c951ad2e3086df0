/* Ranks of MPI that send to one another, take part in collectives, and write to and read from one another's memory. Each
 * checks all that it gets; the first prints how many ranks there are. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONG (1 << 20)

static int rank, size;

static void must(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "rank %d: %s\n", rank, what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

static void point_to_point(void)
{
	static const int LENGTHS[] = {0, 1, 64, 4096, 65536, LONG};
	char *out = malloc(LONG), *in = malloc(LONG);
	int next = (rank + 1) % size, before = (rank + size - 1) % size;
	for (size_t at = 0; at < sizeof LENGTHS / sizeof *LENGTHS; at++)
		for (int round = 0; round < 20; round++) {
			MPI_Request requests[2];
			MPI_Status status;
			int len = LENGTHS[at], got;
			memset(out, rank * 20 + round, len);
			memset(in, 255, len);
			MPI_Irecv(in, len, MPI_CHAR, before, round, MPI_COMM_WORLD, &requests[0]);
			MPI_Isend(out, len, MPI_CHAR, next, round, MPI_COMM_WORLD, &requests[1]);
			MPI_Wait(&requests[0], &status);
			MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
			MPI_Get_count(&status, MPI_CHAR, &got);
			must(got == len, "the length of a message");
			for (int i = 0; i < len; i++)
				must(in[i] == (char)(before * 20 + round), "a byte of a message");
		}
	free(out);
	free(in);
}

static void collectives(void)
{
	enum { COUNT = 10000 };
	int *mine = malloc(COUNT * sizeof *mine), *all = malloc(size * COUNT * sizeof *all);
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < COUNT; i++)
			mine[i] = rank + i + round;
		MPI_Allreduce(mine, all, COUNT, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < COUNT; i++)
			must(all[i] == size * (i + round) + size * (size - 1) / 2, "a sum");
		MPI_Allgather(mine, COUNT, MPI_INT, all, COUNT, MPI_INT, MPI_COMM_WORLD);
		for (int i = 0; i < size * COUNT; i++)
			must(all[i] == i / COUNT + i % COUNT + round, "what was gathered");
		int root = round % size;
		MPI_Bcast(mine, COUNT, MPI_INT, root, MPI_COMM_WORLD);
		for (int i = 0; i < COUNT; i++)
			must(mine[i] == root + i + round, "what was broadcast");
		int *swapped = malloc(size * COUNT * sizeof *swapped);
		for (int i = 0; i < size * COUNT; i++)
			all[i] = rank * size + i / COUNT;
		MPI_Alltoall(all, COUNT, MPI_INT, swapped, COUNT, MPI_INT, MPI_COMM_WORLD);
		for (int i = 0; i < size * COUNT; i++)
			must(swapped[i] == i / COUNT * size + rank, "what came from all");
		free(swapped);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	free(mine);
	free(all);
}

static void one_sided(void)
{
	enum { COUNT = 4096 };
	long *window, sum, one = 1, was;
	MPI_Win handle;
	MPI_Win_allocate(COUNT * sizeof *window, sizeof *window, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &handle);
	long *part = malloc(COUNT * sizeof *part);
	for (int round = 0; round < 10; round++) {
		int next = (rank + 1) % size, before = (rank + size - 1) % size;
		window[0] = 0;
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Win_fence(0, handle);
		for (int i = 1; i < COUNT; i++)
			part[i] = rank * 100000 + i + round;
		MPI_Put(part + 1, COUNT - 1, MPI_LONG, next, 1, COUNT - 1, MPI_LONG, handle);
		MPI_Accumulate(&one, 1, MPI_LONG, 0, 0, 1, MPI_LONG, MPI_SUM, handle);
		MPI_Win_fence(0, handle);
		for (int i = 1; i < COUNT; i++)
			must(window[i] == before * 100000 + i + round, "what was put");
		MPI_Get(part + 1, COUNT - 1, MPI_LONG, next, 1, COUNT - 1, MPI_LONG, handle);
		MPI_Get(&sum, 1, MPI_LONG, 0, 0, 1, MPI_LONG, handle);
		MPI_Win_fence(0, handle);
		must(sum == size, "what was accumulated");
		for (int i = 1; i < COUNT; i++)
			must(part[i] == rank * 100000 + i + round, "what was got");
		MPI_Win_lock_all(0, handle);
		MPI_Fetch_and_op(&one, &was, MPI_LONG, 0, 0, MPI_SUM, handle);
		MPI_Win_flush_all(handle);
		must(was >= size && was < 2 * size, "what was fetched");
		MPI_Win_unlock_all(handle);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	free(part);
	MPI_Win_free(&handle);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	point_to_point();
	collectives();
	one_sided();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks\n", size);
	MPI_Finalize();
	return 0;
}
