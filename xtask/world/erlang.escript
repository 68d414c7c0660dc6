#!/usr/bin/env escript
%% Processes, messages, links and exits, binaries, ETS, sockets, a port.
main(_) ->
    Self = self(),
    Pids = [spawn_link(fun() -> Self ! {N, lists:sum([I * N || I <- lists:seq(1, 200)])} end) || N <- lists:seq(1, 100)],
    io:format("~p ~p~n", [length(Pids), lists:sum([receive {N, S} -> S end || N <- lists:seq(1, 100)])]),
    process_flag(trap_exit, true),
    Reasons = [begin P = spawn_link(fun() -> exit({bad, N}) end), receive {'EXIT', P, R} -> R end end || N <- lists:seq(1, 5)],
    io:format("~p~n", [Reasons]),
    T = ets:new(t, [ordered_set]), [ets:insert(T, {N, N * N}) || N <- lists:seq(1, 2000)],
    io:format("~p ~p~n", [ets:info(T, size), ets:lookup(T, 77)]),
    {ok, L} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}}]), {ok, Port} = inet:port(L),
    spawn(fun() -> {ok, S} = gen_tcp:accept(L), {ok, D} = gen_tcp:recv(S, 0), gen_tcp:send(S, string:uppercase(D)), gen_tcp:close(S) end),
    {ok, C} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}]), ok = gen_tcp:send(C, <<"hello">>), {ok, A} = gen_tcp:recv(C, 0),
    io:format("~s ~s~n", [A, string:trim(os:cmd("echo from a child"))]),
    io:format("~p ~p~n", [re:replace("quick brown", "(\\w)(\\w*)", "\\2\\1", [global, {return, list}]), catch error(bottom, none) =:= x]),
    io:format(standard_error, "to stderr~n", []),
    halt(7).
