//! Setters of parameters. Later versions may have more parameters, so programs do not build them as literals.

/// Makes setters: methods that take the parameters and return them changed.
///
/// They are written with their documentation, what they take and what they set, as in
/// `fn work_timeout(timeout: Duration) => self.timeouts.work = Some(timeout);`, or all as fields: `cqe: u32,` and, after
/// a semicolon, those that are an [`Option`], `srq?: &'a Srq,`, whose setters take a value or the whole option.
#[macro_export]
macro_rules! setters {
    ($($(#[$doc:meta])* fn $name:ident($value:ident: $type:ty) => self.$($field:ident).+ = $new:expr;)+) => {$(
        $(#[$doc])*
        #[must_use]
        pub const fn $name(mut self, $value: $type) -> Self {
            self.$($field).+ = $new;
            self
        }
    )+};
    ($($field:ident: $type:ty,)* $(; $($optional:ident?: $value:ty,)*)?) => {
        $(
            #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
            #[must_use]
            pub const fn $field(mut self, $field: $type) -> Self {
                self.$field = $field;
                self
            }
        )*
        $($(
            #[doc = concat!("Sets [`", stringify!($optional), "`](field@Self::", stringify!($optional), ").")]
            #[must_use]
            pub fn $optional(mut self, $optional: impl Into<Option<$value>>) -> Self {
                self.$optional = $optional.into();
                self
            }
        )*)?
    };
}
