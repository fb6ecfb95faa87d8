# The first program that runs on a site's machine: it reports the machine's facts, receives files, and becomes one of
# them.
# Standard input carries data and a few words, never shell text. Variables set before this: mark, folder, id.
# shellcheck shell=sh disable=SC2154
# Copies are for this user only. The umask is restored before `exec`, so it does not apply to files of jobs.
mask=$(umask)
umask 077
# On a line of its own, even after a partial line.
say() { printf '\n%s %s\n' "$mark" "$*"; }
# Reads the rest of the input and drops it: after a failure, later bytes of the other end must go nowhere.
fail() { say "fail $*"; cat >/dev/null; exit 1; }
one_line() { tr '\n\r' '  '; }
say "os $(uname -s)"
say "arch $(uname -m)"
say "host $(uname -n)"
say "user $(id -un 2>/dev/null)"
say "libc $( (getconf GNU_LIBC_VERSION 2>/dev/null || ldd --version 2>&1) | head -n 1)"
# A tilde that arrives here is compared, not expanded.
# shellcheck disable=SC2088
case $folder in
'~/'*) folder=$HOME/${folder#'~/'} ;;
/*) ;;
*) fail "folder $folder: must begin with / or ~/" ;;
esac
case $folder in
*'
'*) fail "the path of the home folder, or of --folder, has a line break: choose another with --folder DIR" ;;
esac
base=$folder
folder=$folder/$id
for tool in head sha256sum mkdir chmod mv rm; do
    command -v "$tool" >/dev/null 2>&1 || fail "the command $tool is not there"
done
say "folder $folder"
say "base $base"
# Newest first. Names of releases have no spaces.
# shellcheck disable=SC2045
for name in $(ls -t "$base" 2>/dev/null); do
    if [ -x "$base/$name/landbridge" ]; then say "release $name"; fi
done
command -v gzip >/dev/null 2>&1 && say "unpacks gzip"
sum_of() { sha256sum <"$1" | cut -c1-64; }
# Size, inode and times of a file: any write or replacement changes this. Empty where stat is not GNU's.
stamp() { stat -c '%s.%i.%y.%z' "$1" 2>/dev/null | tr ' ' '_'; }
# Stores a file's sum beside it, so that an unchanged file is not hashed again.
remember() { now=$(stamp "$folder/$1"); [ -z "$now" ] || echo "$2 $now" 2>/dev/null >"$folder/.$1.sum"; }
for name in landbridge liblandbridge-fi.so liblandbridge-layer.so liblandbridge-layer-large.so; do
    [ -f "$folder/$name" ] || continue
    sum='' was=''
    [ ! -f "$folder/.$name.sum" ] || read -r sum was <"$folder/.$name.sum"
    if [ -z "$was" ] || [ "$was" != "$(stamp "$folder/$name")" ]; then
        sum=$(sum_of "$folder/$name")
        remember "$name" "$sum"
    fi
    say "have $name $sum"
done
say ready
part=$folder/.part-$$
trap 'rm -f "$part"' EXIT
# The command that unpacks the files that follow.
unpack='cat'
while read -r verb name size sum; do
    case $verb in
    gzip) unpack='gzip -dc' ;;
    put)
        words=$(mkdir -p "$folder" 2>&1) || fail "cannot make $folder: $(printf %s "$words" | one_line)"
        words=$({ head -c "$size" | $unpack >"$part"; } 2>&1) ||
            { rm -f "$part"; fail "cannot write $folder/$name: $(printf %s "$words" | one_line)"; }
        if [ "$(sum_of "$part")" != "$sum" ]; then
            rm -f "$part"
            fail "$folder/$name did not arrive whole (a full disk, or a quota?)"
        fi
        words=$({ chmod 755 "$part" && mv -f "$part" "$folder/$name"; } 2>&1) ||
            fail "cannot put $folder/$name in its place: $(printf %s "$words" | one_line)"
        remember "$name" "$sum"
        say "put $name"
        ;;
    go)
        folder=$base/$name
        words=$("$folder/landbridge" --version 2>&1 </dev/null) ||
            fail "$folder/landbridge does not run there: $(printf %s "$words" | one_line)"
        say "go $words"
        cd "$HOME" || fail "no home directory"
        umask "$mask"
        exec "$folder/landbridge" site-end
        ;;
    *) fail "unknown word $verb" ;;
    esac
done
