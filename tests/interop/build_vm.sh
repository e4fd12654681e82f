#!/bin/bash
# Builds the peer of the interoperation tests: a small virtual machine with Debian's kernel and its soft RDMA
# driver rdma_rxe, with rdma-core's programs and perftest. Everything comes from Debian 12 packages.
#
# Usage: build_vm.sh OUTDIR        Makes OUTDIR/vmlinuz and OUTDIR/initrd. Installs missing packages, as root or by
# sudo, and downloads the kernel. Takes a quarter of a minute.
set -euo pipefail

out=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/peer-vm.XXXXXX")
chmod 755 "$work"  # readable for the user that apt downloads as
trap 'rm -rf "$work"' EXIT
root=$work/root
libdir=/usr/lib/x86_64-linux-gnu

programs=(ibv_devinfo ibv_devices ibv_rc_pingpong ibv_uc_pingpong ibv_ud_pingpong ibv_srq_pingpong
          ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_atomic_bw ib_atomic_lat
          rping ucmatose udaddy mckey rstream cmtime qperf rdma ip tc)
modules=(crc32_generic crc32c_generic virtio_pci virtio_net af_packet 8021q ifb sch_netem sch_prio sch_ingress cls_flower
         act_mirred rdma_rxe rdma_ucm ib_umad)

install_packages() {
  local missing=() p
  for p in "$@"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
  ((${#missing[@]} == 0)) && return
  local as_root=()
  ((EUID == 0)) || as_root=(sudo -n)
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o DPkg::Lock::Timeout=300 "${missing[@]}" >/dev/null
}

# The signed kernel image that the archive has now.
if ((EUID == 0)); then apt-get update -qq; else sudo -n apt-get update -qq; fi
image=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-[^ ]*\).*/\1/p' | head -1)
release=${image#linux-image-}
install_packages kmod cpio busybox-static ibverbs-utils ibverbs-providers rdmacm-utils perftest qperf iproute2

# ---- kernel and modules --------------------------------------------------------------------------------------
(cd "$work" && apt-get download -qq "$image" && dpkg-deb -x "$image"_*.deb kernel)
/sbin/depmod -b "$work/kernel" "$release"

# ---- the initial RAM disk ------------------------------------------------------------------------------------
mkdir -p "$root"/{bin,dev,etc,modules,proc,sys,tmp,usr/bin} "$root$libdir/libibverbs"
cp /bin/busybox "$root/bin/"
for applet in $(/bin/busybox --list); do
  case $applet in busybox | ip | tc | ping6) ;; *) ln -s busybox "$root/bin/$applet" ;; esac
done
mkdir "$root/etc/libibverbs.d"
cp /etc/libibverbs.d/rxe.driver "$root/etc/libibverbs.d/"
echo '127.0.0.1 localhost' >"$root/etc/hosts"
cp -L "$libdir"/libibverbs/librxe-rdmav*.so "$root$libdir/libibverbs/"
for program in "${programs[@]}"; do
  cp -L "$(PATH=$PATH:/usr/sbin:/sbin command -v "$program")" "$root/usr/bin/"
done
# Shared libraries of all that, at the paths the dynamic linker of this machine finds them.
{ find "$root/usr/bin" "$root$libdir" -type f \( -perm -u+x -o -name '*.so*' \) \
    -exec ldd {} + 2>/dev/null || true; } | grep -oE '/[^ ):]+' | sort -u | while read -r lib; do
  case $lib in "$root"*) continue ;; esac
  mkdir -p "$root$(dirname "$lib")"
  cp -Ln "$lib" "$root$lib"
done

# Modules in the order they must be loaded.
for m in "${modules[@]}"; do
  /sbin/modprobe -d "$work/kernel" -S "$release" --show-depends "$m" || true
done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' >"$work/order"
number=100
while read -r file; do
  cp "$file" "$root/modules/$number-${file##*/}"
  number=$((number + 1))
done <"$work/order"

cat >"$root/init" <<'INIT'
#!/bin/sh
# Kernel arguments: vmip=A.B.C.D/N vmip6=ADDRESS/N vmmtu=BYTES. TCP port 2323 is a root shell, one per connection.
export PATH=/bin:/usr/bin HOME=/tmp
export LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:/lib/x86_64-linux-gnu
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /dev/shm
mount -t tmpfs none /dev/shm
mount -t tmpfs none /tmp
for word in $(cat /proc/cmdline); do
  case $word in
    vmip=*) vmip=${word#*=} ;;
    vmip6=*) vmip6=${word#*=} ;;
    vmmtu=*) vmmtu=${word#*=} ;;
  esac
done
for module in /modules/*.ko; do
  insmod $module || echo "cannot load $module"
done
# No duplicate address detection: addresses are usable, and in the GID table, at once.
echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad
echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad
ip link set lo up
ip link set eth0 mtu ${vmmtu:-1500} up
ip addr add ${vmip:-10.200.0.2/24} dev eth0
[ -n "$vmip6" ] && ip -6 addr add $vmip6 dev eth0
rdma link add rxe0 type rxe netdev eth0
mdev -s
nc -ll -p 2323 -e /bin/sh &
rdma link
echo PEER-READY
while :; do sleep 1000; done
INIT
chmod +x "$root/init"
# Not compressed: unpacking it would take longer than reading it does.
(cd "$root" && find . | cpio -o -H newc --quiet) >"$work/initrd"
mv "$work/initrd" "$out/initrd"
cp "$work/kernel/boot/vmlinuz-$release" "$work/vmlinuz"
mv "$work/vmlinuz" "$out/vmlinuz"
