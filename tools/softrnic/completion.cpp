// softrnic completion: scripts for shells.
#include <fmt/format.h>

#include "tools/softrnic/commands.h"

namespace softrnic::tool {
namespace {

constexpr const char* kBash = R"~(# bash completion for softrnic: eval "$(softrnic completion bash)"
_softrnic() {
  local cur prev word command= verb= i
  cur=${COMP_WORDS[COMP_CWORD]}
  prev=${COMP_WORDS[COMP_CWORD-1]}
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == -- && ( $command == run || $command$verb == netexec ) ]]; then
      # The program's own completion.
      _command_offset $((i + 1)) 2>/dev/null || COMPREPLY=($(compgen -c -- "$cur"))
      return
    fi
    if [[ $word != -* ]]; then
      if [[ -z $command ]]; then command=$word; elif [[ -z $verb ]]; then verb=$word; fi
    fi
  done
  case $prev in
    --config) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --dir) COMPREPLY=($(compgen -d -- "$cur")); return ;;
    -w|--write|--capture|--file|--fifo) COMPREPLY=($(compgen -f -- "$cur")); return ;;
  esac
  case $command in
    '') COMPREPLY=($(compgen -W 'run env up down address status devices capture fault events net completion --help --version' -- "$cur")) ;;
    run)
      if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W '--private --capture --fault --dir --force --help --' -- "$cur"))
      else
        COMPREPLY=($(compgen -c -- "$cur"))
      fi ;;
    up) COMPREPLY=($(compgen -W '--port --ip --route --mac --mtu --detect-duplicates --config --dir --help' -- "$cur")) ;;
    address) COMPREPLY=($(compgen -W 'add del --device --dir --help' -- "$cur")) ;;
    env) COMPREPLY=($(compgen -W '--plain --dir --help' -- "$cur")) ;;
    status) COMPREPLY=($(compgen -W '--json --dir --help' -- "$cur")) ;;
    capture) COMPREPLY=($(compgen -W '-w --write --snaplen --filter --dir --help' -- "$cur")) ;;
    fault) COMPREPLY=($(compgen -W 'add list del all --file --json --dir --help' -- "$cur")) ;;
    events) COMPREPLY=($(compgen -W '--follow --json --dir --help' -- "$cur")) ;;
    net)
      case $verb in
        '') COMPREPLY=($(compgen -W 'up exec status down --help' -- "$cur")) ;;
        up) COMPREPLY=($(compgen -W '--name --dir --help' -- "$cur") $(compgen -f -- "$cur")) ;;
        exec) COMPREPLY=($(compgen -W '--lab --dir --help --' -- "$cur")) ;;
        status) COMPREPLY=($(compgen -W '--json --dir --help' -- "$cur")) ;;
        down) COMPREPLY=($(compgen -W '--all --dir --help' -- "$cur")) ;;
      esac ;;
    completion) COMPREPLY=($(compgen -W 'bash' -- "$cur")) ;;
    *) COMPREPLY=($(compgen -W '--dir --help' -- "$cur")) ;;
  esac
}
complete -F _softrnic softrnic
)~";

}  // namespace

int completion(const std::string& shell) {
  if (shell != "bash") return complain(fmt::format("no completion for '{}' (there is: bash)", shell)), kExitFailure;
  fmt::print("{}", kBash);
  return 0;
}

}  // namespace softrnic::tool
