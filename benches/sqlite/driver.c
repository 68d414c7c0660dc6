/* The work of the SQLite bench: 100,000 rows are inserted and read back in memory; nanoseconds for all of it. */
#include "sqlite3.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void must(int code, int want, sqlite3 *db)
{
	if (code != want) {
		fprintf(stderr, "sqlite: %s\n", sqlite3_errmsg(db));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	int rows = argc > 1 ? atoi(argv[1]) : 100000;
	sqlite3 *db;
	sqlite3_stmt *statement;
	double start = now();
	must(sqlite3_open(":memory:", &db), SQLITE_OK, db);
	must(sqlite3_exec(db, "create table t(id integer primary key, name text, size int); create index by_size on t(size); begin", 0, 0, 0), SQLITE_OK, db);
	must(sqlite3_prepare_v2(db, "insert into t(name, size) values(?, ?)", -1, &statement, 0), SQLITE_OK, db);
	for (int i = 0; i < rows; i++) {
		char name[32];
		int length = snprintf(name, sizeof name, "row %d", i);
		must(sqlite3_bind_text(statement, 1, name, length, SQLITE_TRANSIENT), SQLITE_OK, db);
		must(sqlite3_bind_int(statement, 2, (int)((i * 7919LL) % 10007)), SQLITE_OK, db);
		must(sqlite3_step(statement), SQLITE_DONE, db);
		must(sqlite3_reset(statement), SQLITE_OK, db);
	}
	sqlite3_finalize(statement);
	must(sqlite3_exec(db, "commit", 0, 0, 0), SQLITE_OK, db);
	must(sqlite3_prepare_v2(db, "select sum(length(name)), count(*), size % 10 from t where size > 5 group by 3 order by 1", -1, &statement, 0), SQLITE_OK, db);
	long long sum = 0;
	while (sqlite3_step(statement) == SQLITE_ROW)
		sum = sum * 31 + sqlite3_column_int64(statement, 0) + sqlite3_column_int64(statement, 1);
	sqlite3_finalize(statement);
	must(sqlite3_close(db), SQLITE_OK, db);
	printf("measured %.0f %lld\n", now() - start, sum);
	return 0;
}
