command -v git > /dev/null || { echo "this task needs git" >&2; exit 1; }
export GIT_AUTHOR_NAME=Ada GIT_AUTHOR_EMAIL=ada@example.org GIT_COMMITTER_NAME=Ada GIT_COMMITTER_EMAIL=ada@example.org
export GIT_AUTHOR_DATE="2024-01-01T12:00:00Z" GIT_COMMITTER_DATE="2024-01-01T12:00:00Z"
git init -q -b main project
cd project
commit() { git add -A && git commit -q -m "$1"; }
echo "# Project" > README.md
commit "Begin"
printf 'url = https://example.org\nretries = 3\n' > settings.ini
commit "Add settings"
printf 'url = https://example.org\nretries = 3\ntoken = tok_9f4kz17qav\n' > settings.ini
commit "Talk to the other service"
echo "See settings.ini; tokens look like tok_example." >> README.md
commit "Describe settings"
git checkout -q -b tidy
printf 'url = https://example.org\nretries = 5\n' > settings.ini
commit "Retry more often"
git checkout -q main
echo "Licence: MIT" >> README.md
commit "Name the licence"
git merge -q --no-ff -m "Merge tidy" tidy
printf 'url = https://example.org/v2\nretries = 5\n' > settings.ini
commit "Use version 2"
