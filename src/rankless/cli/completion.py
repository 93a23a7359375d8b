"""Complete commands, options, recipes, keys, models and runs in bash, zsh and fish.

When Tab is pressed, the shell script calls ``rankless __complete``, which uses cyclopts' engine.
:mod:`rankless.cli.candidates` provides recipes, keys, models and runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, cast

from cyclopts import Parameter

from rankless.cli.options import OPTIONS, app
from rankless.errors import UserError, printable
from rankless.printing import say

_Shell = Annotated[
    str | None,
    Parameter(
        name="SHELL", help="bash, zsh or fish. Default: the current shell.", completer=lambda _: _SCRIPTS
    ),
]

# A record is a word, a tab and a description. Lines that start with \x1f are instructions for the script.
# cyclopts' own scripts add a space after key=, and its bash script treats key=value as three words.
_SCRIPTS: Mapping[str, str] = {
    "bash": r"""
_rankless() {
    # bash splits words at = and :, and replaces only what follows the last of them.
    local -a words=(); local i word glue= line value prefix= files=
    for ((i = 1; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ ${#words[@]} -gt 0 && ( $word == [=:]* || -n $glue ) ]]
        then words[-1]+=$word; else words+=("$word"); fi
        glue=; [[ $word == *[=:] ]] && glue=1
    done
    local cur=${words[-1]}; local head=${cur%"${cur##*[=:]}"}
    local asked=$(printf '%s\x1f' "${words[@]}")
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            $'\x1f'begin) COMPREPLY=() ;;
            $'\x1f'prefix*) prefix=${line#*$'\t'} ;;
            $'\x1f'files) files=1 ;;
            ?*) value=$prefix${line%%$'\t'*}; printf -v value %q "${value#"$head"}"; COMPREPLY+=("$value") ;;
        esac
    done < <(CYCLOPTS_COMPLETION_WORDS=$asked "${COMP_WORDS[0]}" __complete 2>/dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
    if [[ $files ]]; then
        compopt -o filenames
        while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "${cur#"$head"}")
    fi
}
complete -o default -F _rankless rankless
""",
    "zsh": r"""#compdef rankless
# It has the name of the file that cyclopts installs, so that loading it replaces the file's function.
_cyclopts_rankless() {
    local line value prefix= files=
    local -a keys keytexts values texts
    local asked=$(printf '%s\x1f' "${(@)words[2,CURRENT]}")
    for line in "${(@f)$(CYCLOPTS_COMPLETION_WORDS=$asked ${words[1]} __complete 2>/dev/null)}"; do
        case $line in
            $'\x1f'prefix*) prefix=${line#*$'\t'} ;;
            $'\x1f'files) files=1 ;;
            ''|$'\x1f'*) ;;
            *) value=$prefix${line%%$'\t'*}; line="$value${${line#${line%%$'\t'*}}/$'\t'/  -- }"
                if [[ $value == *[=.] ]]; then keys+=("$value"); keytexts+=("$line")
                else values+=("$value"); texts+=("$line"); fi ;;
        esac
    done
    (( $#keys )) && compadd -l -d keytexts -S '' -a keys
    (( $#values )) && compadd -l -d texts -a values
    if [[ $files ]] || (( ! $#keys + $#values )); then compset -P '*='; _files; fi
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]
then _cyclopts_rankless "$@"; else compdef _cyclopts_rankless rankless; fi
""",
    "fish": r"""
function __rankless
    set -l words (commandline -opc) (commandline -ct)
    set -l command $words[1]
    set -l asked (printf '%s\x1f' $words[2..-1] | string collect)
    set -l prefix ''
    set -l none 1
    for line in (CYCLOPTS_COMPLETION_WORDS=$asked $command __complete 2>/dev/null)
        if string match -q \x1fprefix\* -- $line
            set prefix (string split -m 1 \t -- $line)[2]
        else if test "$line" = \x1ffiles
            __fish_complete_path (commandline -ct)
        else if test -n "$line"; and not string match -q \x1f\* -- $line
            set none 0
            echo $prefix$line
        end
    end
    if test $none = 1
        set -l head (string match -r '^.*=' -- (commandline -ct))
        for path in (__fish_complete_path (string replace -r '^.*=' '' -- (commandline -ct)))
            echo $head$path
        end
    end
end
complete -c rankless -f -a '(__rankless)'
""",
}


@app.command(name="--install-completion", group=OPTIONS, usage="Usage: rankless --install-completion [SHELL]")
def install_completion(shell: _Shell = None, /) -> int:
    """Install Tab completion of commands, recipes, keys and runs."""
    from cyclopts.completion.install import add_to_rc_file, get_default_completion_path

    known = _known(shell, "--install-completion")
    path = get_default_completion_path(known, "rankless")
    path.write_text(_SCRIPTS[known], encoding="utf-8")
    if known != "fish":
        add_to_rc_file(path, "rankless", known)
    needs = " if .zshrc runs: autoload -Uz compinit && compinit" if known == "zsh" else ""
    say(f"written: {path}; completion works in new shells{needs}")
    return 0


@app.command(name="--show-completion", group=OPTIONS, usage="Usage: rankless --show-completion [SHELL]")
def show_completion(shell: _Shell = None, /) -> int:
    """Print the script that --install-completion installs."""
    print(_SCRIPTS[_known(shell, "--show-completion")].lstrip("\n"), end="")
    return 0


def _known(shell: str | None, option: str) -> Literal["bash", "zsh", "fish"]:
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    try:
        shell = shell or detect_shell()
    except ShellDetectionError:
        raise UserError(f"{option}: cannot detect the current shell; expected bash, zsh or fish") from None
    if shell not in _SCRIPTS:
        raise UserError(f"{option} is '{printable(shell)}': expected bash, zsh or fish")
    return cast(Literal["bash", "zsh", "fish"], shell)
