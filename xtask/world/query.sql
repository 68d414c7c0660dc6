-- Tables, an index, a trigger, recursive queries, window functions, JSON, full-text-like searches, transactions, errors.
create table t(a integer primary key, b text, c real);
with recursive n(x) as (select 1 union all select x + 1 from n where x < 5000) insert into t select x, 'row ' || (x * 7919 % 5003), x / 7.0 from n;
create index tb on t(b);
create table log(n); create trigger tt after delete on t begin insert into log values (old.a); end;
begin; delete from t where a % 3 = 0; rollback; begin; delete from t where a % 5 = 0; commit;
select count(*), round(sum(c), 3), min(b), max(b) from t; select count(*), sum(n) from log;
select b from t where b like '%99%' order by b limit 5;
select a, sum(a) over (order by a rows 3 preceding) from t where a < 12;
with recursive fib(i, a, b) as (select 1, 0, 1 union all select i + 1, b, a + b from fib where i < 60) select a from fib order by i desc limit 3;
select group_concat(x) from (select a * a as x from t limit 8); select hex(zeroblob(3)), upper('abc'), typeof(1.5), quote(x'00ff');
select * from missing;
pragma integrity_check; vacuum; select count(*) from sqlite_master;
