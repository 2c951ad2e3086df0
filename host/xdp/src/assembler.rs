//! eBPF instructions, as the kernel loads them: eight bytes each.
//!
//! As much of the instruction set as `steering.rs` needs. Read RFC 9669 before changing this file.

/// A register: 0 holds results, 1 to 5 arguments, 6 to 9 survive calls, 10 is the end of the stack.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reg(pub u8);

/// Width of a load or store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Width {
    /// One byte.
    Byte,
    /// Two bytes.
    Half,
    /// Four bytes.
    Word,
    /// Eight bytes.
    Double,
}

/// When a jump is taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum If {
    /// Always.
    Always,
    /// The two are equal.
    Equal,
    /// They are not.
    Unequal,
    /// The first is greater, both without a sign.
    Greater,
    /// The first is not less, both without a sign.
    NotLess,
}

/// The other operand.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operand {
    /// A number, whose sign is extended to 64 bits.
    Number(i32),
    /// What a register holds.
    Register(Reg),
}

impl From<Reg> for Operand {
    fn from(register: Reg) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

/// A place in a program that jumps go to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Label(usize);

/// A program being written.
#[derive(Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    /// Where each label is, once it has been placed.
    labels: Vec<Option<usize>>,
    /// Jumps, and the labels they go to.
    jumps: Vec<(usize, Label)>,
}

/// One instruction before its jump is known.
#[derive(Clone, Copy, Debug, Default)]
struct Instruction {
    code: u8,
    target: u8,
    source: u8,
    offset: i16,
    number: i32,
}

impl Instruction {
    fn encode(self) -> u64 {
        let registers = match cfg!(target_endian = "little") {
            true => self.source << 4 | self.target,
            false => self.target << 4 | self.source,
        };
        let [o0, o1] = self.offset.to_ne_bytes();
        let [n0, n1, n2, n3] = self.number.to_ne_bytes();
        u64::from_ne_bytes([self.code, registers, o0, o1, n0, n1, n2, n3])
    }
}

impl Assembler {
    /// A label to be placed later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// The label is here.
    ///
    /// # Panics
    ///
    /// If it is of another program.
    pub fn place(&mut self, label: Label) {
        let here = self.instructions.len();
        *self.labels.get_mut(label.0).expect("a label of this program") = Some(here);
    }

    /// Copies a value to a register.
    pub fn set(&mut self, target: Reg, value: impl Into<Operand>) {
        self.operation(ALU64 | MOV, target, value.into());
    }

    /// Adds to a register.
    pub fn add(&mut self, target: Reg, value: impl Into<Operand>) {
        self.operation(ALU64 | ADD, target, value.into());
    }

    /// Keeps those bits of a register that are set in `value`.
    pub fn and(&mut self, target: Reg, value: impl Into<Operand>) {
        self.operation(ALU64 | AND, target, value.into());
    }

    /// Loads from memory.
    pub fn load(&mut self, width: Width, target: Reg, base: Reg, offset: i16) {
        let code = LDX | MEM | size(width);
        self.push(Instruction { code, target: target.0, source: base.0, offset, number: 0 });
    }

    /// Stores to memory.
    pub fn store(&mut self, width: Width, base: Reg, offset: i16, value: impl Into<Operand>) {
        let (code, source, number) = match value.into() {
            Operand::Number(number) => (ST | MEM | size(width), 0, number),
            Operand::Register(source) => (STX | MEM | size(width), source.0, 0),
        };
        self.push(Instruction { code, target: base.0, source, offset, number });
    }

    /// Adds to memory what a register holds, in one step for all processors; words and double words alone.
    pub fn add_there(&mut self, width: Width, base: Reg, offset: i16, value: Reg) {
        let code = STX | ATOMIC | size(width);
        self.push(Instruction {
            code,
            target: base.0,
            source: value.0,
            offset,
            number: i32::from(ADD),
        });
    }

    /// Jumps if two values compare like this.
    pub fn jump(&mut self, when: If, first: Reg, second: impl Into<Operand>, to: Label) {
        let condition = match when {
            If::Always => JA,
            If::Equal => JEQ,
            If::Unequal => JNE,
            If::Greater => JGT,
            If::NotLess => JGE,
        };
        self.jumps.push((self.instructions.len(), to));
        self.operation(JMP | condition, first, second.into());
    }

    /// Jumps.
    pub fn go(&mut self, to: Label) {
        self.jump(If::Always, Reg(0), 0, to);
    }

    /// Loads a map by the number of its descriptor: two instructions.
    pub fn map(&mut self, target: Reg, descriptor: i32) {
        self.load_long(target, PSEUDO_MAP_FD, descriptor);
    }

    /// Loads where the value is of an array that has one, by the number of its descriptor: two instructions.
    pub fn value_of(&mut self, target: Reg, descriptor: i32) {
        self.load_long(target, PSEUDO_MAP_VALUE, descriptor);
    }

    /// Calls a function of the kernel by its number.
    pub fn call(&mut self, function: i32) {
        self.push(Instruction { code: JMP | CALL, number: function, ..Instruction::default() });
    }

    /// Ends the program; register 0 is its result.
    pub fn exit(&mut self) {
        self.push(Instruction { code: JMP | EXIT, ..Instruction::default() });
    }

    /// The program.
    ///
    /// # Panics
    ///
    /// If a jump goes to a label that was not placed, or too far.
    #[must_use]
    pub fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let to = self.labels.get(label.0).copied().flatten().expect("a label that is placed");
            let [to, at_signed] = [to, at].map(|n| i64::try_from(n).expect("a short program"));
            let jump = self.instructions.get_mut(at).expect("a jump that was written");
            jump.offset = i16::try_from(to - at_signed - 1).expect("a short program");
        }
        self.instructions.into_iter().map(Instruction::encode).collect()
    }

    fn load_long(&mut self, target: Reg, source: u8, number: i32) {
        let code = LD_DOUBLE;
        self.push(Instruction { code, target: target.0, source, offset: 0, number });
        self.push(Instruction::default());
    }

    fn operation(&mut self, code: u8, target: Reg, value: Operand) {
        let (source, number, from) = match value {
            Operand::Number(number) => (0, number, 0),
            Operand::Register(source) => (source.0, 0, FROM_REGISTER),
        };
        let code = code | from;
        self.push(Instruction { code, target: target.0, source, offset: 0, number });
    }

    fn push(&mut self, instruction: Instruction) {
        self.instructions.push(instruction);
    }
}

const fn size(width: Width) -> u8 {
    match width {
        Width::Word => 0x00,
        Width::Half => 0x08,
        Width::Byte => 0x10,
        Width::Double => 0x18,
    }
}

const LDX: u8 = 0x01;
const ST: u8 = 0x02;
const STX: u8 = 0x03;
const JMP: u8 = 0x05;
const ALU64: u8 = 0x07;
const MEM: u8 = 0x60;
const ATOMIC: u8 = 0xc0;
const LD_DOUBLE: u8 = 0x18;
const PSEUDO_MAP_FD: u8 = 1;
const PSEUDO_MAP_VALUE: u8 = 2;
const FROM_REGISTER: u8 = 0x08;
const ADD: u8 = 0x00;
const AND: u8 = 0x50;
const MOV: u8 = 0xb0;
const JA: u8 = 0x00;
const JEQ: u8 = 0x10;
const JGT: u8 = 0x20;
const JGE: u8 = 0x30;
const JNE: u8 = 0x50;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes are those of the examples and tables of RFC 9669.
    #[test]
    fn instructions_are_as_the_kernel_reads_them() {
        let mut program = Assembler::default();
        let end = program.label();
        program.set(Reg(0), 2);
        program.load(Width::Half, Reg(5), Reg(2), 12);
        program.jump(If::Greater, Reg(4), Reg(3), end);
        program.store(Width::Byte, Reg(10), -40, 4);
        program.add_there(Width::Word, Reg(0), 4, Reg(1));
        program.value_of(Reg(4), 9);
        program.call(1);
        program.place(end);
        program.exit();
        let bytes: Vec<_> = program.finish().into_iter().map(u64::to_ne_bytes).collect();
        let expected: [[u8; 8]; 9] = [
            [0xb7, 0x00, 0, 0, 2, 0, 0, 0],
            [0x69, 0x25, 12, 0, 0, 0, 0, 0],
            [0x2d, 0x34, 5, 0, 0, 0, 0, 0],
            [0x72, 0x0a, 0xd8, 0xff, 4, 0, 0, 0],
            [0xc3, 0x10, 4, 0, 0, 0, 0, 0],
            [0x18, 0x24, 0, 0, 9, 0, 0, 0],
            [0; 8],
            [0x85, 0x00, 0, 0, 1, 0, 0, 0],
            [0x95, 0x00, 0, 0, 0, 0, 0, 0],
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(bytes, expected);
        }
    }
}
