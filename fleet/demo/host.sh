#!/usr/bin/env bash
# One host of `cargo experiment fleet-demo`: the first process of its own PID, mount and host name namespaces, in a network
# namespace. It starts the services of a host with some load on them, and an agent, until a file says that it is enough.
#
#   host.sh NAME FOLDER PROGRAM LEAKY ADDRESS-OF-THE-METRICS
set -u
name=$1 folder=$2 program=$3 leaky=$4 address=$5
hostname "$name"
cd "$folder" || exit 1

for port in 6379 6380 6381; do
  redis-server --bind 127.0.0.1 --port "$port" --save '' --appendonly no >"redis-$port.log" 2>&1 &
  {
    # A benchmark that finds nobody may wait for ever.
    until redis-cli -p "$port" ping >/dev/null 2>&1; do sleep 0.2; done
    while :; do
      timeout 20 redis-benchmark -q -p "$port" -n 500 -r 100000 -d 100 -t set,lpush >/dev/null 2>&1
      sleep 1
    done
  } &
done

cat >nginx.conf <<END
daemon off;
worker_processes 2;
pid $folder/nginx.pid;
error_log $folder/nginx.log;
events {}
http {
  access_log off;
  client_body_temp_path $folder/body; proxy_temp_path $folder/proxy; fastcgi_temp_path $folder/fastcgi;
  uwsgi_temp_path $folder/uwsgi; scgi_temp_path $folder/scgi;
  server { listen 127.0.0.1:8080; location / { return 200 "here\n"; } }
}
END
nginx -p "$folder" -c "$folder/nginx.conf" &
while :; do
  curl -s --parallel --parallel-max 8 "http://127.0.0.1:8080/[1-50]" >/dev/null
  sleep 1
done &

mkdir postgresql && chown nobody postgresql
postgresql=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
as_nobody() { (cd / && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"); }
if as_nobody "$postgresql/initdb" -D "$folder/postgresql/data" -U tester -A trust --no-sync >postgresql.log 2>&1; then
  as_nobody "$postgresql/postgres" -D "$folder/postgresql/data" -k "$folder/postgresql" -h '' -c fsync=off >>postgresql.log 2>&1 &
  client="-h $folder/postgresql -U tester postgres"
  # shellcheck disable=SC2086
  until as_nobody "$postgresql/psql" $client -c 'select 1' >/dev/null 2>&1; do sleep 0.2; done
  # shellcheck disable=SC2086
  as_nobody "$postgresql/pgbench" -i -q $client >>postgresql.log 2>&1
  # shellcheck disable=SC2086
  as_nobody "$postgresql/pgbench" -c 4 -T 100000 -R 40 $client >>postgresql.log 2>&1 &
fi

mkfifo requests
"$leaky" <requests >/dev/null &
(
  exec >requests
  # From the first byte on, so that what arrives can be compared with what was leaked.
  until curl -s "http://$address/metrics" | grep -q 'memhook_target_live_bytes{.*service="leak"'; do sleep 0.2; done
  touch started
  count=0
  until [ -e stop ]; do
    printf l
    count=$((count + 1))
    sleep 0.2
  done
  echo "$count" >leaks
  # The end of its input would end the program.
  sleep 1000
) &

"$program" agent --config agent.toml 2>agent.log &
agent=$!
until [ -e leaks ]; do sleep 0.2; done
# The last answers of the program, and the last profile after them.
sleep 2
kill -TERM "$agent"
wait "$agent"
echo $? >ended
