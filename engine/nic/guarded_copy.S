// The code of guarded_copy.h. Nothing here changes the stack pointer, so that the fault handler can continue any
// of these functions at softrnic_guard_fault, which returns 1 to the caller.

#if !defined(__x86_64__)
#error "only x86-64 has a guarded copy"
#endif

        .text
        .hidden softrnic_guard_begin, softrnic_guard_end, softrnic_guard_fault, softrnic_guard_use_avx
        .globl  softrnic_guard_begin, softrnic_guard_end, softrnic_guard_fault

        .macro  FUNCTION name
        .globl  \name
        .hidden \name
        .type   \name, @function
        .p2align 5
\name:
        .cfi_startproc
        endbr64
        .endm
        .macro  END_FUNCTION name
        .cfi_endproc
        .size   \name, . - \name
        .endm
        // One naturally aligned store of `size` bytes, pointers advanced, %rdx counted down.
        .macro  MOVE size, insn, reg
        \insn   (%rsi), \reg
        \insn   \reg, (%rdi)
        add     $\size, %rsi
        add     $\size, %rdi
        sub     $\size, %rdx
        .endm

softrnic_guard_begin:

// int softrnic_guarded_copy(void* dst /*rdi*/, const void* src /*rsi*/, size_t n /*rdx*/)
FUNCTION softrnic_guarded_copy
        test    %rdx, %rdx
        jz      .Ldone
        test    $7, %dil
        jnz     .Lalign_to_8

.Laligned_8:                            // rdx >= 1
        cmp     $32, %rdx
        ja      .Lmore_than_32
.Lwords:                                // 1 <= rdx <= 32; all but the last word
        cmp     $8, %rdx
        jbe     .Llast_word
        MOVE    8, mov, %rax
        jmp     .Lwords
.Llast_word:                            // 1 <= rdx <= 8
        jb      .Ltail
        mov     (%rsi), %rax
        mov     %rax, (%rdi)
        xor     %eax, %eax
        ret

.Ltail:                                 // rdx < 8, dst aligned to the power of two that is not above rdx
        test    $4, %dl
        jz      1f
        MOVE    4, mov, %eax
1:      test    $2, %dl
        jz      1f
        MOVE    2, movw, %ax
1:      test    $1, %dl
        jz      .Ldone
        movb    (%rsi), %al
        movb    %al, (%rdi)
.Ldone:
        xor     %eax, %eax
        ret

.Lalign_to_8:
        test    $1, %dil
        jz      1f
        MOVE    1, movb, %al
        jz      .Ldone
1:      test    $2, %dil
        jz      1f
        cmp     $2, %rdx
        jb      .Ltail
        MOVE    2, movw, %ax
        jz      .Ldone
1:      test    $4, %dil
        jz      .Laligned_8
        cmp     $4, %rdx
        jb      .Ltail
        MOVE    4, mov, %eax
        jz      .Ldone
        jmp     .Laligned_8

.Lmore_than_32:
        test    $31, %dil
        jz      .Laligned_32
        MOVE    8, mov, %rax
        cmp     $32, %rdx
        ja      .Lmore_than_32
        jmp     .Lwords

.Laligned_32:                           // rdx > 32: the wide stores leave at least one byte for the words
        cmpb    $0, softrnic_guard_use_avx(%rip)
        je      .Lsse
        cmp     $128, %rdx
        jbe     2f
        .p2align 4
1:      vmovdqu (%rsi), %ymm0
        vmovdqu 32(%rsi), %ymm1
        vmovdqu 64(%rsi), %ymm2
        vmovdqu 96(%rsi), %ymm3
        vmovdqa %ymm0, (%rdi)
        vmovdqa %ymm1, 32(%rdi)
        vmovdqa %ymm2, 64(%rdi)
        vmovdqa %ymm3, 96(%rdi)
        sub     $-128, %rsi
        sub     $-128, %rdi
        add     $-128, %rdx
        cmp     $128, %rdx
        ja      1b
        cmp     $32, %rdx
        jbe     3f
2:      vmovdqu (%rsi), %ymm0
        vmovdqa %ymm0, (%rdi)
        add     $32, %rsi
        add     $32, %rdi
        sub     $32, %rdx
        cmp     $32, %rdx
        ja      2b
3:      vzeroupper
        jmp     .Lwords

.Lsse:
        movdqu  (%rsi), %xmm0
        movdqu  16(%rsi), %xmm1
        movdqa  %xmm0, (%rdi)
        movdqa  %xmm1, 16(%rdi)
        add     $32, %rsi
        add     $32, %rdi
        sub     $32, %rdx
        cmp     $32, %rdx
        ja      .Lsse
        jmp     .Lwords
END_FUNCTION softrnic_guarded_copy

// int softrnic_guarded_compare_swap(uint64_t* p, uint64_t compare, uint64_t swap, uint64_t* original)
FUNCTION softrnic_guarded_compare_swap
        mov     %rsi, %rax
        lock cmpxchg %rdx, (%rdi)
        mov     %rax, (%rcx)
        xor     %eax, %eax
        ret
END_FUNCTION softrnic_guarded_compare_swap

// int softrnic_guarded_fetch_add(uint64_t* p, uint64_t addend, uint64_t* original)
FUNCTION softrnic_guarded_fetch_add
        lock xadd %rsi, (%rdi)
        mov     %rsi, (%rdx)
        xor     %eax, %eax
        ret
END_FUNCTION softrnic_guarded_fetch_add

// int softrnic_guarded_probe_read(const void* p)
FUNCTION softrnic_guarded_probe_read
        movb    (%rdi), %al
        xor     %eax, %eax
        ret
END_FUNCTION softrnic_guarded_probe_read

// int softrnic_guarded_probe_write(void* p)
FUNCTION softrnic_guarded_probe_write
        lock orb $0, (%rdi)
        xor     %eax, %eax
        ret
END_FUNCTION softrnic_guarded_probe_write

softrnic_guard_end:

        .p2align 4
softrnic_guard_fault:
        .cfi_startproc
        cmpb    $0, softrnic_guard_use_avx(%rip)
        je      1f
        vzeroupper
1:      mov     $1, %eax
        ret
        .cfi_endproc

// The return of our signal handlers to the kernel (SA_RESTORER).
        .globl  softrnic_signal_return
        .hidden softrnic_signal_return
        .type   softrnic_signal_return, @function
        .p2align 4
        nop                             // unwinders look one byte before a return address
softrnic_signal_return:
        mov     $15, %eax               // rt_sigreturn
        syscall
        .size   softrnic_signal_return, . - softrnic_signal_return

        .section .note.GNU-stack, "", @progbits
