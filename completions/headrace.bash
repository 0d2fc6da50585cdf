# Completion of headrace for bash. Verbs and options come from the command's own --help, so they are never out of date.

_headrace_options() {
    "$1" "$2" --help 2>/dev/null | sed -n 's/^  \(--[a-z-]*\).*/\1/p'
}

# The options of a verb that want a value: in the help an upper-case word follows them.
_headrace_wants_value() {
    "$1" "$2" --help 2>/dev/null | grep -q "^  $3 [A-Z]"
}

_headrace() {
    local command=$1 word=$2 verb=${COMP_WORDS[1]} before=${COMP_WORDS[COMP_CWORD - 1]} words=
    COMPREPLY=()
    # "=" splits words: --route=pread arrives as "--route" "=" "pread".
    if [[ $word == = ]]; then
        word=
    elif [[ $before == = ]]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi

    if ((COMP_CWORD == 1)); then
        words=$("$command" --help 2>/dev/null | sed -n 's/^  \([a-z-]*\)  .*/\1/p')
    elif [[ $before == --route ]]; then
        words='auto pread uring mmap gds'
    elif [[ $before == --dtype ]]; then
        words='auto BF16 F16 F32 F64 F8_E4M3 F8_E5M2'
    elif [[ $before == --device ]]; then
        words='auto cpu cuda'
    elif [[ $before == --* ]] && _headrace_wants_value "$command" "$verb" "$before"; then
        return
    elif [[ $word == -* ]]; then
        words=$(_headrace_options "$command" "$verb")
    else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        return
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}

complete -F _headrace headrace
