/* The time that MPI_Allreduce takes: the median of so many, after one that does not count.
   Usage: mpi BYTES ITERATIONS. The first rank prints microseconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int rank, members;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &members);
    int count = argc > 2 ? (int)((atol(argv[1]) + 3) / 4) : 0;
    int iterations = argc > 2 ? atoi(argv[2]) : 0;
    float *own = malloc(sizeof *own * count), *sum = malloc(sizeof *sum * count);
    double *times = malloc(sizeof *times * iterations);
    if (iterations < 1 || !own || !sum || !times)
        MPI_Abort(MPI_COMM_WORLD, 2);
    for (int i = 0; i < count; i++) {
        own[i] = (float)((rank + 1) * (i % 977 + 1) % 1000);
        sum[i] = 0;
    }
    for (int round = -1; round < iterations; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Allreduce(own, sum, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (round >= 0)
            times[round] = MPI_Wtime() - start;
    }
    for (int i = 0; i < count; i++) {
        float due = 0;
        for (int member = 0; member < members; member++)
            due += (float)((member + 1) * (i % 977 + 1) % 1000);
        if (sum[i] != due)
            MPI_Abort(MPI_COMM_WORLD, 1);
    }
    qsort(times, iterations, sizeof *times, by_size);
    if (rank == 0)
        printf("%.1f\n", times[iterations / 2] * 1e6);
    MPI_Finalize();
    return 0;
}
