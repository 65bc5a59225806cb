mkdir -p site/bin/data site/pages/en site/private/keys
echo "<h1>hello</h1>" > site/pages/index.html
echo "<h1>hello</h1>" > "site/pages/en/first page.html"
echo "echo hello" > site/bin/start
echo "echo bye" > site/bin/stop.sh
echo 1 > site/bin/data/count
echo secret > site/private/password
echo secret > site/private/keys/id
chmod -R u+rwX,go+rwx site
chmod 4755 site/bin/start
chmod 200 site/pages/index.html
echo outside > outside
chmod 640 outside
