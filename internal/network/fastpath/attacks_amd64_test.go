package fastpath

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// foreignConnect connects a socket with i386's system call socketcall.
func foreignConnect(fd int, address []byte) error {
	// Code and arguments must have addresses of 32 bits. The code is called as
	// a function value is: with its own address in DX.
	memory, err := unix.MmapPtr(-1, 0, nil, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_32BIT)
	if err != nil {
		return fmt.Errorf("map memory: %w", err)
	}
	defer unix.MunmapPtr(memory, 4096)
	page := (*struct {
		code                         uintptr
		eax, ebx, ecx, edx, esi, edi uint32
		result                       int32
		args                         [3]uint32
		address                      [64]byte
		text                         [64]byte
	})(memory)
	low := func(p unsafe.Pointer) uint32 { return uint32(uintptr(p)) }
	const socketcall, connect = 102, 3
	page.code = uintptr(unsafe.Pointer(&page.text))
	page.eax, page.ebx, page.ecx = socketcall, connect, low(unsafe.Pointer(&page.args))
	copy(page.address[:], address)
	page.args = [3]uint32{uint32(fd), low(unsafe.Pointer(&page.address)), uint32(len(address))}
	copy(page.text[:], []byte{
		0x49, 0x89, 0xd4, // mov r12, rdx
		0x41, 0x8b, 0x44, 0x24, 0x08, // mov eax, [r12+8]
		0x41, 0x8b, 0x5c, 0x24, 0x0c, // mov ebx, [r12+12]
		0x41, 0x8b, 0x4c, 0x24, 0x10, // mov ecx, [r12+16]
		0xcd, 0x80, // int 0x80
		0x41, 0x89, 0x44, 0x24, 0x20, // mov [r12+32], eax
		0xc3, // ret
	})
	call := *(*func())(unsafe.Pointer(&memory))
	call()
	if page.result < 0 {
		return unix.Errno(-page.result)
	}
	return nil
}
