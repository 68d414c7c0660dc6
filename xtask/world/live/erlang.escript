#!/usr/bin/env escript
%% Processes that crash, links, ETS, binaries, patterns, collections; children meanwhile.
-mode(compile).
step(N, Seed, Table) ->
    ets:update_counter(Table, {Seed, N rem 1000}, 1, {{Seed, N rem 1000}, 0}),
    Length = try error({bad, N}) catch error:{bad, M} -> length(integer_to_list(M)) end,
    <<First, _/binary>> = erlang:md5(<<N:32, Seed:32>>),
    case N rem 500 of
        0 -> erlang:garbage_collect(), length(re:replace("quick brown", "(\\w)(\\w*)", "\\2\\1", [global, {return, list}]));
        _ -> Length + First
    end.
main(_) ->
    process_flag(trap_exit, true),
    Table = ets:new(t, [public, {write_concurrency, true}]),
    Sum = fun(Seed) -> lists:foldl(fun(N, Sum) -> Sum + step(N, Seed, Table) end, 0, lists:seq(1, 350000)) end,
    Pids = [spawn_link(fun() -> exit({sum, Sum(Seed)}) end) || Seed <- lists:seq(1, 8)],
    Said = [os:cmd("echo from a child") || _ <- lists:seq(1, 30)],
    io:format("~p ~p~n", [length(lists:usort(Said)), [receive {'EXIT', Pid, {sum, S}} -> S end || Pid <- Pids]]),
    io:format("~p ~p~n", [ets:info(Table, size), ets:lookup(Table, {3, 77})]),
    halt(7).
