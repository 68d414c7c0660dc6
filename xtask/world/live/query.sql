create table t(a integer primary key, b text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 900000) insert into t select i, hex(i * 2654435761 % 4294967296) from n;
create index by_b on t(b);
select count(*), sum(length(b)) from t where b like '%A%';
with recursive n(i) as (select 1 union all select i + 1 from n where i < 6000000) select sum(i % 7) from n;
delete from t where a % 3 = 0;
select count(*), max(b) from (select b, row_number() over (order by b) r from t) where r % 5 = 0;
vacuum;
select count(*) from t;
